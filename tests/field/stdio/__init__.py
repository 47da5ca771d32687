"""Servers over stdio that deviate from the specification, as public bug reports describe them."""
