"""Links to upstream servers: connecting, keeping them connected, and speaking the protocol with them.

A call passes these layers on its way out, and its answer on the way back:

    supervisor      which link a call takes
    reconnecting    keeps one link connected; `connect` and `pipe_era` choose its transport and its era
    conversation    what is the same in all eras: requests in flight, cancelling, closing
    handshake, stateless    a `Dialect` each, and their rules over HTTP
    pipe, streamable, handshake.http_sse    a `Transport` each: moves messages, and knows no era
    http, child     responses and processes

An oddity of servers is accepted by a function of `leniency`, which one place of the layer calls that it belongs to:
`http.responses` for bytes, media types and statuses; `conversation.messages` for JSON-RPC; the era's dialect for what
an answer means; the era's `HttpRules` for a refusal over HTTP. `oddities` counts and shows them.

`oauth` asks authorization servers. Knows nothing of downstream and gateway.
"""
