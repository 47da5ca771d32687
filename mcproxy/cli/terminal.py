"""The person at a terminal as a client of the gateway: progress as a bar, log messages as lines, questions as prompts.

Everything goes to stderr: stdout is for the result. What servers say is printed without control characters, so
that it cannot take the terminal over.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from anyio import to_thread
from msgspec import Raw
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError
from mcproxy.protocol.jsonrpc import INVALID_REQUEST, Params, raw
from mcproxy.protocol.methods import INPUT_CAPABILITIES, LOG_MESSAGE, PROGRESS

ELICITATION: Final = "elicitation"
MAX_ATTEMPTS: Final = 5
"""How often a person is asked again for a value that does not fit."""

Prompt = Callable[[str], str]
"""Puts a question to the person and returns the line; raises EOFError where nobody answers any more."""


class Terminal:
    """A `call.clients.Client`. `ask_line` is None where nobody sits there: questions are then refused."""

    def __init__(self, console: Console, ask_line: Prompt | None) -> None:
        self._console = console
        self._ask_line = ask_line
        self._bar: Progress | None = None
        self._task = TaskID(0)

    @property
    def capabilities(self) -> Params:
        """What to declare for this client."""
        return {} if self._ask_line is None else {ELICITATION: raw({"form": {}, "url": {}})}

    def notify(self, method: str, params: Params) -> None:
        show = {PROGRESS: self._show_progress, LOG_MESSAGE: self._show_log}.get(method)
        if show is not None:
            show(params)

    async def ask(self, request: InputRequest) -> Raw:
        """Raises McpError where nobody can answer."""
        if self._ask_line is None or INPUT_CAPABILITIES.get(request.method) != ELICITATION:
            raise McpError(INVALID_REQUEST, f"this client does not answer {request.method}")
        self.close()
        answer = await to_thread.run_sync(self._elicit, _plain(request.params), abandon_on_cancel=True)
        return raw(answer)

    def close(self) -> None:
        """Takes the progress bar away, where there is one."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show_progress(self, params: Params) -> None:
        values = _plain(params)
        total, message = values.get("total"), printable(str(values.get("message", "")))
        if not self._console.is_terminal:
            of = f" of {total}" if total is not None else ""
            self._line(f"progress: {values.get('progress')}{of} {message}".rstrip())
            return
        if self._bar is None:
            columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        self._bar.update(
            self._task, completed=_number(values.get("progress")), total=_number(total), description=message
        )

    def _show_log(self, params: Params) -> None:
        values = _plain(params)
        data = values.get("data")
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        self._line(f"{values.get('level')}: {text}")

    def _elicit(self, params: dict[str, Any]) -> dict[str, Any]:
        """Runs on a thread: people are slow (elicitation, 2025-11-25)."""
        assert self._ask_line is not None, "asked before"
        self._line(f"a server asks: {params.get('message', '')}")
        try:
            if params.get("mode") == "url":
                return self._offer_url(str(params.get("url", "")))
            self._line("(an empty line takes the default or leaves it out; ! declines)")
            content = {}
            for name, shape in _properties(params.get("requestedSchema")):
                value = self._ask_value(name, shape)
                if value is not None:
                    content[name] = value
        except _Declined:
            return {"action": "decline"}
        except EOFError:
            return {"action": "cancel"}
        return {"action": "accept", "content": content}

    def _offer_url(self, url: str) -> dict[str, Any]:
        """The server's page is the person's to open: the domain is shown, and nothing is fetched."""
        self._line(f"open this page of {urlsplit(url).hostname}: {url}")
        return {"action": "accept" if self._question("opened? [y/N] ").lower() in {"y", "yes"} else "decline"}

    def _ask_value(self, name: str, shape: dict[str, Any]) -> object:
        """None where it is left out."""
        label = printable(str(shape.get("title") or name))
        hint = shape.get("description") or ", ".join(choices(shape))
        default = shape.get("default")
        suffix = (f" ({printable(str(hint))})" if hint else "") + (f" [{default}]" if default is not None else "")
        for _ in range(MAX_ATTEMPTS):
            line = self._question(f"{label}{suffix}: ")
            if not line:
                return default
            try:
                return parse_value(line, shape)
            except ValueError as error:
                self._line(str(error))
        raise _Declined

    def _question(self, prompt: str) -> str:
        assert self._ask_line is not None, "asked before"
        line = self._ask_line(printable(prompt)).strip()
        if line == "!":
            raise _Declined
        return line

    def _line(self, text: str) -> None:
        self._console.print(Text(printable(text)), soft_wrap=True)


class _Declined(Exception):
    """The person would rather not."""


def parse_value(line: str, shape: dict[str, Any]) -> object:
    """What was typed, as the primitive type that the schema wants. Raises ValueError with a sentence."""
    match shape.get("type"):
        case "boolean":
            if line.lower() not in {"y", "yes", "true", "n", "no", "false"}:
                raise ValueError("answer y or n")
            return line.lower() in {"y", "yes", "true"}
        case "integer":
            return int(line)
        case "number":
            return float(line)
        case "array":
            return [item.strip() for item in line.split(",")]
        case _:
            allowed = choices(shape)
            if allowed and line not in allowed:
                raise ValueError(f"choose one of {', '.join(allowed)}")
            return line


def choices(shape: dict[str, Any]) -> list[str]:
    """The values that an enumeration allows, titled or not; empty where anything goes."""
    titled = [option["const"] for option in shape.get("oneOf", ()) if isinstance(option, dict) and "const" in option]
    return [str(value) for value in shape.get("enum", titled)]


def printable(text: str) -> str:
    """The text without control characters: a server's words must not move the cursor."""
    return "".join(char if char in "\n\t" or unicodedata.category(char)[0] != "C" else "\ufffd" for char in text)


def line_reader(console: Console) -> Prompt | None:
    """Asks at the console, where a person sits there; None where none does."""

    def ask(prompt: str) -> str:
        console.print(Text(prompt), end="")
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line

    return ask if console.is_terminal and sys.stdin.isatty() else None


def _plain(params: Params) -> dict[str, Any]:
    return {key: msgspec.json.decode(value) for key, value in params.items()}


def _properties(schema: object) -> list[tuple[str, dict[str, Any]]]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return [(name, shape) for name, shape in (properties or {}).items() if isinstance(shape, dict)]


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None
