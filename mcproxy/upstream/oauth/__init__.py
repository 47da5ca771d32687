"""The gateway as an OAuth client of its upstreams (basic/authorization): discovery, registration, login, tokens.

    401 -> challenge -> metadata (resource, then issuer) -> registration -> login (a person) -> tokens -> grants

The modules that decide are sans-I/O and take the time as an argument: `challenge`, `metadata`, `registration`, `login`,
`tokens`, `grants`. `endpoints` sends what they decide, `store` keeps what must outlive the process, `flow` leads a
login through, and `authorizer` gives one upstream its tokens. Callers' own credentials are another matter (`access`).
"""
