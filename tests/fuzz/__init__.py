"""Any bytes at all, thrown at what reads a peer's bytes."""
