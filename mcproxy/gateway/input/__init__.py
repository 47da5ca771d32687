"""Requests for input from upstreams to clients (sampling, elicitation, roots), across all four pairs of eras."""
