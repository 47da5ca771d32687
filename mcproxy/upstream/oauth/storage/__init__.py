"""Storage of grants: the encrypted file, and its key in the system's keyring."""
