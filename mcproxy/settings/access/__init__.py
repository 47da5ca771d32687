"""What a configuration can say of access: authentication, policy, rates, pins and the audit."""
