"""Where grants are kept: the encrypted file, and its key in the system's keyring."""
