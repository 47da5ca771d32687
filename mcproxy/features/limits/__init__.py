"""Limits on what callers may use (`access.limits`): rates, calls at once, daily quotas."""
