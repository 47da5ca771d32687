"""The cache of resource reads: what is kept, for whom, how long, and what makes it stale."""
