"""Everything between a client's connection and a `Call`: one module for each transport of each era.

`front` accepts connections and identifies callers; `handshake` and `stateless` speak one era each, and never see each
other; `io` is what they share. MCP is served by our own HTTP server (`mcproxy.http.server`) and over stdio. Imports
neither upstream nor gateway: it is given a handler of calls.
"""
