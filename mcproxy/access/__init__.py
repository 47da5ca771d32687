"""May this caller do this? Identity, policy and limits."""
