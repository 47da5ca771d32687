"""Approved definitions (`access.pins`): what servers offer, compared with what was approved."""
