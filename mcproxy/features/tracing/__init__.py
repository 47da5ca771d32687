"""OpenTelemetry traces of calls, where `proxy.tracing` is on."""
