"""The listeners: routes, Host and Origin, identity, TLS, and the choice of the era, before any message is answered."""
