"""Remembered lists: what a server listed in the last run is served at once in the next."""
