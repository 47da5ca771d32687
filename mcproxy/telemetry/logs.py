"""Logs for operators: one line to stderr for each change of state, on a console or as JSON.

Secrets are taken out by value, from every line of every library (requirement R44).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Final, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from mcproxy.telemetry.log_stream import log_stream

MIN_SECRET: Final = 6
"""Characters of a secret at least: shorter values are words such as `true`, and redacting them would protect little."""

REDACTED: Final = "[redacted]"

MAX_TEXT: Final = 8192
"""Characters of one text in a line, and of an error that is kept; a longer one is cut."""

Mask = Callable[[str], str]
"""Puts REDACTED in place of each secret in a text."""

Facts = Callable[[], Mapping[str, object]]

about: Final[ContextVar[Facts | None]] = ContextVar("about", default=None)
"""Returns the fields that log lines written now get: the call's id and trace. Called only when a line is written."""


def configure(
    form: Literal["console", "json", "auto"],
    level: str,
    secrets: Iterable[str],
    stream: TextIO | None = None,
) -> None:
    """Sets up structlog, and the loggers of libraries beside it."""
    stream = stream or sys.stderr
    threshold = logging.getLevelNamesMapping()[level.upper()]
    prepared: list[Processor] = [
        _of_its_call,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        redacting(secrets),
    ]
    renderer = _renderer(form, stream)
    lines = cast(TextIO, log_stream(stream))
    structlog.configure(
        processors=[*prepared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(lines),
        cache_logger_on_first_use=False,
    )
    _configure_libraries(prepared, renderer, lines, threshold)


def set_level(level: str) -> None:
    """Logs from `level` on, from now on; nothing else changes."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(threshold))
    logging.getLogger().setLevel(max(threshold, logging.WARNING))


def is_verbose() -> bool:
    """Whether debug logs are written."""
    verbose: bool = structlog.get_logger().is_enabled_for(logging.DEBUG)
    return verbose


def _of_its_call(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    facts = about.get()
    return event if facts is None else {**facts(), **event}


def redacting(values: Iterable[str]) -> Processor:
    """A processor that replaces each of `values` by REDACTED, however deep in an event."""
    values = frozenset(values)
    mask, longest = masking(values), max(map(len, values), default=0)

    def redact(value: object) -> object:
        match value:
            case None | bool() | int() | float():
                return value
            case dict():
                return {redact(key): redact(member) for key, member in value.items()}
            case list() | tuple() | set() | frozenset():
                return [redact(item) for item in value]
            case _:
                # The part that is cut off is not searched, except for the rest of a secret that begins before.
                text = str(value)
                return shortened(mask(text) if len(text) <= MAX_TEXT else mask(text[: MAX_TEXT + longest]), len(text))

    def process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {key: redact(value) for key, value in event.items()}

    return process


def masking(values: Iterable[str]) -> Mask:
    """Replaces each of `values` that is no short word by REDACTED, in time linear in the text."""
    secrets = sorted({value for value in values if len(value) >= MIN_SECRET}, key=len, reverse=True)
    if not secrets:
        return _unchanged
    import re2

    pattern = re2.compile("|".join(re2.escape(encodable(secret)) for secret in secrets))
    return lambda text: str(pattern.sub(REDACTED, encodable(text)))


def shortened(text: str, length: int | None = None) -> str:
    """`text`, cut to MAX_TEXT characters: what a peer wrote fills no log and no page.

    `length` is how long it was in the beginning, where it is the beginning of a longer one.
    """
    left = (len(text) if length is None else max(length, len(text))) - MAX_TEXT
    return text if left <= 0 else f"{text[:MAX_TEXT]}... ({left} more characters)"


def encodable(text: str) -> str:
    """`text` without halves of surrogate pairs, which have no UTF-8."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _unchanged(text: str) -> str:
    return text


def _renderer(form: str, stream: TextIO) -> Processor:
    terminal = stream.isatty()
    if form == "console" or (form == "auto" and terminal):
        return structlog.dev.ConsoleRenderer(colors=terminal)
    return structlog.processors.JSONRenderer()


def _configure_libraries(prepared: list[Processor], renderer: Processor, stream: TextIO, level: int) -> None:
    """Sends aiohttp's and asyncio's complaints to the same log, and drops their chatter."""
    handler = logging.StreamHandler(stream)
    chain = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *prepared, renderer]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=chain))
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING), force=True)
    logging.getLogger("aiohttp.server").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Drops complaints about clients that sent invalid HTTP: they were answered so, and could fill the log."""
    from aiohttp.http_exceptions import HttpProcessingError
    from aiohttp.web import RequestPayloadError

    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | RequestPayloadError)
