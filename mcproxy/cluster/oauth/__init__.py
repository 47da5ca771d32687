"""OAuth toward upstreams in several replicas: shared grants, each renewed by one, and shared logins."""
