"""The command line: one module per command, its declaration in `commands`, printing in `output` and `terminal`."""
