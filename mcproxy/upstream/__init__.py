"""Links to upstream servers: connecting, keeping them connected, and one module for each transport of each era.

Speaks HTTP through `mcproxy.http.client`, and to children over their stdio. Knows nothing of downstream and gateway.
"""
