"""Tasks: work that outlives its call, in the ids that its client knows."""
