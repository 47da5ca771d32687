"""The configuration file: found, read with every problem at its place, expanded, and turned into settings."""
