"""The command line: what each command does, and how it looks on a terminal and elsewhere."""
