"""Tool results that are too large for a model: shows them in part, and keeps the whole for callers who ask for more."""
