"""The operators' side: status page with tool calls, live feed, health checks, and collectors for Prometheus.

Reads the gateway and, from the status page, calls tools and reads resources as the operator; changes no setting.
"""
