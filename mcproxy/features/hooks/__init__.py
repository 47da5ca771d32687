"""Hooks (`access.hooks`): external services that judge calls and outcomes."""
