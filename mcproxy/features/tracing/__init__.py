"""OpenTelemetry traces of calls, if `proxy.tracing` is on."""
