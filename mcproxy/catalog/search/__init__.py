"""Tools found by search: their index and ranking, what a searching endpoint lists, and the tools of its own."""
