"""The operators' side: status page, approvals, the socket for commands, health checks, and metrics for Prometheus.

Reads the gateway, restarts its upstreams and, from the status page, calls tools and reads resources as the operator;
changes no setting but the log level.
"""
