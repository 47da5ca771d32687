"""What every request of a client passes first: routes, Host and Origin, identity, TLS, and the choice of the era."""
