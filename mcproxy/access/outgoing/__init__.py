"""Requests of the gateway's own to services that operators or issuers name: signed, repeated, to public addresses."""
