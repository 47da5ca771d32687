"""Attacks over real sockets, one for each row of deploy/THREATS.md that no other test holds."""
