"""Approved definitions (`access.pins`): compares what servers offer with what was approved."""
