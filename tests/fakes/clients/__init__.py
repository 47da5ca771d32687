"""Real clients, one for each SDK, that play the same script and hand in a transcript of what they met.

A script is a JSON object: `transport` (`stdio` with `command`, or `http` or `sse` with `url`), `answers` (what to
say to the server's questions, by method) and `steps`. A step's `do` is a method, whose `params` are sent and whose
lists are drained to the last page, and which asks for no progress where `quiet`; `await`, for a notification of
`method` that came since the step before began, or will; or `cancel`, a `tools/call` given up at its first report of
progress. The TypeScript clients are in `tests/system/node`.
"""
