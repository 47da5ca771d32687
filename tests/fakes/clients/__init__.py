"""Real clients, one for each SDK, that play the same scripts and hand in a transcript of what they met.

Each script comes as a line on stdin, is played on a connection of its own, and answered by a line on stdout.

A script is a JSON object: `transport` (`stdio` with `command`, or `http` or `sse` with `url`), `mode` (how the second
generations choose their era: `legacy`, if not told, or `auto`), `answers` (what to say to the server's questions, by
method; a step may bring others, from then on) and `steps`. A step's `do` is a method, whose `params` are sent and
whose lists are drained to the last page, and which asks for no progress where `quiet`; `await`, for a notification of
`method` that came since the step before began, or will; `cancel`, a `tools/call` given up at its first report of
progress; or `listen`, to changes of the tools and of resources by their `uris`, as the era has it. A step that does
not end in time is marked `late`. The TypeScript clients are in `tests/system/node`.
"""
