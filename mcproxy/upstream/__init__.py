"""Calls to servers: one file for each transport of each era. Knows aiohttp's client and children; never gateway."""
