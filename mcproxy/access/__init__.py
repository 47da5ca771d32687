"""Who is asking, and may they: identity, policy, limits, pins and the record of what was decided."""
