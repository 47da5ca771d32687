"""Access control: authentication of callers, policy, rate limits, pinned definitions and the audit log."""
