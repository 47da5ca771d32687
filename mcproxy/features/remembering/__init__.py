"""Remembered lists: at a start, serves at once what servers listed in the previous run."""
