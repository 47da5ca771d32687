"""Calls that a person has to approve before they are sent: asked over the bridge, or decided by an operator."""
