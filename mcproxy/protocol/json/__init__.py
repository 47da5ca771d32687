"""JSON itself, whatever its meaning: limits on size and depth, repeated members, and malformed text."""
