"""Results of tools that are too large for a model: shown in part, and kept whole for those who ask for more."""
