"""What can be said of traces: whether they are recorded, how many, and where they go."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

from pydantic import Field, field_validator

from mcproxy.settings.section import Positive, Seconds, Section


class TracingSettings(Section):
    """OpenTelemetry. What is not said here is as the OTEL_* variables of the environment say."""

    enabled: bool = False
    """Record calls as spans and send them by OTLP over HTTP; needs `pip install mcproxy[opentelemetry]`."""
    endpoint: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """Where to, as http://collector:4318/v1/traces; else as OTEL_EXPORTER_OTLP_ENDPOINT says."""
    sample: Annotated[float, Field(ge=0, le=1)] | None = None
    """The share of traces begun here that is recorded; else as OTEL_TRACES_SAMPLER says: all. Clients say of theirs."""
    max_queued: Positive = 2048
    """Spans that wait to be sent; one more is lost."""
    timeout: Seconds = 2
    """For the collector to take some. At its end the gateway waits at most twice as long."""

    @field_validator("enabled")
    @classmethod
    def _can_be_had(cls, enabled: bool) -> bool:
        if enabled and not (is_installed("opentelemetry.sdk") and is_installed("opentelemetry.exporter.otlp")):
            raise ValueError("needs OpenTelemetry: pip install 'mcproxy[opentelemetry]'")
        return enabled


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package that it is in
        return False
