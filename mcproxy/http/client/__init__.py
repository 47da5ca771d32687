"""An HTTP/1.1 client (RFC 9110, RFC 9112): connections that are kept, and bodies that are read as they arrive.

Use: `Pool(connect_timeout, max_idle).request("POST", url, write_head("POST", url, fields), body)`, inside a running
asyncio loop. It returns a `ClientResponse` when the head has arrived; read it with `read(limit)` or `async for`, then
`release()` or `close()` it. Nothing here knows MCP, nor anything else of mcproxy.

Guarantees:
- A request is sent twice only if its method is GET, HEAD, OPTIONS or DELETE, and nothing was answered to the first.
- `ConnectFailed` means that nothing was sent; `ConnectionBroken`, that it is unknown what became of a request.
- A header field never becomes two: to write what a line cannot hold raises ValueError (RFC 9110, section 5.5).
- Cancelling a request closes its connection, unless the response is complete.
- A body waits for its reader: beyond 256 KiB unread the server is made to wait; beyond 4 MiB where the head was
  recognised, which says how long the body is. A paused connection is resumed whenever its reader takes, releases or
  closes; the table in `connection` says so.
- What a server sends unasked, or behind a response, closes the connection and never becomes another response.

Limits: 64 KiB without a byte of body (heads, interim responses, trailers); 16 KiB and 1 s for the rest of a released
response; idle connections are closed after 15 to 19 s. Of a peer that is gone without a word, TCP's probes tell after
two minutes. No redirects, cookies, upgrades, content codings or pipelining, and no time-outs but for connecting: cancel
to stop waiting.
"""

from mcproxy.http.client.heads import ResponseHead, check_names, write_fields, write_head
from mcproxy.http.client.pool import Pool, origin
from mcproxy.http.client.response import ClientResponse, ConnectionBroken, ResponseTooLarge
from mcproxy.http.client.tunnel import ProxyFailed
from mcproxy.http.client.way import ConnectFailed, Proxy, Way, Ways

__all__ = [
    "ClientResponse",
    "ConnectFailed",
    "ConnectionBroken",
    "Pool",
    "Proxy",
    "ProxyFailed",
    "ResponseHead",
    "ResponseTooLarge",
    "Way",
    "Ways",
    "check_names",
    "origin",
    "write_fields",
    "write_head",
]
