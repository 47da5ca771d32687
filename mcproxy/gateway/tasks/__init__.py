"""Tasks: work that outlives its call, under ids that its client knows."""
