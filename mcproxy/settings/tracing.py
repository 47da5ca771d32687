"""Settings of OpenTelemetry traces (`proxy.tracing`): whether they are recorded, how many, and where they are sent."""

from importlib.util import find_spec
from typing import Annotated

from pydantic import Field, field_validator

from mcproxy.settings.egress import Leaving
from mcproxy.settings.section import Number, Positive, Seconds, worded


class TracingSettings(Leaving):
    """Traces of calls (OpenTelemetry). The OTEL_* environment variables hold where a setting is not given."""

    enabled: bool = False
    """Record calls as spans and send them by OTLP over HTTP; needs `pip install mcproxy[opentelemetry]`."""
    endpoint: Annotated[str, Field(pattern=r"^https?://"), worded("should be an http or https URL")] | None = None
    """URL of the collector, as http://collector:4318/v1/traces; default OTEL_EXPORTER_OTLP_ENDPOINT."""
    sample: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Share of traces that is recorded, from 0 to 1; default OTEL_TRACES_SAMPLER, else all.

    A trace that a client began is recorded as the client decided.
    """
    max_queued: Positive = 2048
    """Spans that wait to be sent; further ones are dropped."""
    timeout: Seconds = 2
    """Time that the collector has to accept a batch. At exit the gateway waits at most twice as long."""

    @field_validator("enabled")
    @classmethod
    def _can_be_had(cls, enabled: bool) -> bool:
        if enabled and not (is_installed("opentelemetry.sdk") and is_installed("opentelemetry.exporter.otlp")):
            raise ValueError("needs OpenTelemetry: pip install 'mcproxy[opentelemetry]'")
        return enabled


def is_installed(module: str) -> bool:
    """Whether a library can be imported; does not import it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing too
        return False
