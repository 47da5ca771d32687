"""Resolves the names and URIs of calls to upstreams and their own names, and decides who may use which."""
