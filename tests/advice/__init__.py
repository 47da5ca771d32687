"""Advice about shape and prose: `make lint-advice` prints it, and no gate depends on it."""
