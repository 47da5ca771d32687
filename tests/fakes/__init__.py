"""Stand-ins for what the gateway meets: clients, servers, and its own rooms."""
