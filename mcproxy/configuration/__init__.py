"""The configuration file: finding it, parsing it, expanding its references, and validating it into settings."""
