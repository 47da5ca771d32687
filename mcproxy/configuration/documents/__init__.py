"""Configuration files as trees in which each value knows its line and column: YAML, JSON with comments, TOML."""
