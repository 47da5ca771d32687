"""Tokens of callers: verified by the keys of their issuers, which are fetched from addresses that may be asked."""
