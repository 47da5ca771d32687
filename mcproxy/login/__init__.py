"""The pages on which people log in to upstreams that want OAuth, below `proxy.public_url`.

    /oauth/connect/{sealed} -> who is it? (issuer of the callers, or key) -> consent -> authorization server
    /oauth/callback         -> the grant is stored -> what to do next

A link names a principal and an upstream, sealed; it opens nothing by itself. Who opens it proves to be that principal,
or nothing is begun. `links` and `visits` decide, sans-I/O; `routes` answers requests; `sign_in` asks the issuer.
"""
