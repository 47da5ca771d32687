"""What operators see of a running gateway: logs, Prometheus metrics and traces."""
