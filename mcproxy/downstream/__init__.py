"""Clients to calls: one file for each transport of each era. Knows aiohttp's server and stdin; never upstream."""
