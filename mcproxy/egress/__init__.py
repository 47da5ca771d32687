"""The one way out: by which route, with which certificates and to which addresses an HTTP request may leave.

`egress` decides, and looks nothing up: direct or through which proxy, by the settings and the environment.
`certificates` makes TLS contexts and reads their files again when they change. `failures` explains why a connection was
not made, and names the setting that helps. `client` sends requests that are not MCP. `mcproxy.http.client` carries the
decision out: it connects, and opens tunnels.
"""
