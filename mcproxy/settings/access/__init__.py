"""Settings of access control: authentication, policy, limits, pins and the audit log."""
