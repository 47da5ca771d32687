"""The audit: what is kept of calls, logins and operators, how it is written, and what it sums up to."""
