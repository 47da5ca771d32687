"""What an operator sees: health, status and metrics. Read-only."""
