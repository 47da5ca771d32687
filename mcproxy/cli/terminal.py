"""The person at a terminal as a client: progress as a bar, log messages as lines, elicitation as prompts.

Everything is printed to stderr: stdout is for the result. Texts of servers are printed without control characters,
which could take over the terminal.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from anyio import to_thread
from msgspec import Raw

from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError
from mcproxy.protocol.json import bounds
from mcproxy.protocol.jsonrpc import INVALID_REQUEST, Params, raw
from mcproxy.protocol.methods import INPUT_CAPABILITIES, LOG_MESSAGE, PROGRESS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

ELICITATION: Final = "elicitation"
MAX_ATTEMPTS: Final = 5
"""Attempts that a person has to enter a valid value."""

REPLACEMENT: Final = "\ufffd"
"""Stands for a character that is not printed."""
_LINE_BREAKS: Final = frozenset({"Zl", "Zp"})
"""Categories of U+2028 and U+2029."""

Prompt = Callable[[str], str]
"""Asks the person and returns the line; raises EOFError at the end of input."""


class Terminal:
    """Implements `call.clients.Client`. `ask_line` is None where no person can answer: questions are refused."""

    def __init__(self, console: Console, ask_line: Prompt | None) -> None:
        self._console = console
        self._ask_line = ask_line
        self._bar: Progress | None = None
        self._task: TaskID

    @property
    def capabilities(self) -> Params:
        """The client capabilities to declare."""
        return {} if self._ask_line is None else {ELICITATION: raw({"form": {}, "url": {}})}

    def notify(self, method: str, params: Params) -> None:
        show = {PROGRESS: self._show_progress, LOG_MESSAGE: self._show_log}.get(method)
        if show is not None:
            show(params)

    async def ask(self, request: InputRequest) -> Raw:
        """Raises McpError where no person can answer."""
        if self._ask_line is None or INPUT_CAPABILITIES.get(request.method) != ELICITATION:
            raise McpError(INVALID_REQUEST, f"this client does not answer {request.method}")
        self.close()
        answer = await to_thread.run_sync(self._elicit, _plain(request.params), abandon_on_cancel=True)
        return raw(answer)

    def close(self) -> None:
        """Removes the progress bar, if any."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show_progress(self, params: Params) -> None:
        values = _plain(params)
        total, message = values.get("total"), printable_line(str(values.get("message", "")))
        if not self._console.is_terminal:
            of = f" of {total}" if total is not None else ""
            self._line(f"progress: {values.get('progress')}{of} {message}".rstrip())
            return
        if self._bar is None:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

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
        """Asks for the values of an elicitation, on a thread (elicitation, 2025-11-25)."""
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
        """Shows a server's URL and its domain for the person to open; fetches nothing."""
        self._line(f"open this page of {urlsplit(url).hostname}: {url}")
        return {"action": "accept" if self._question("opened? [y/N] ").lower() in {"y", "yes"} else "decline"}

    def _ask_value(self, name: str, shape: dict[str, Any]) -> object:
        """The value that the person entered; None where it was left out."""
        label = printable_line(str(shape.get("title") or name))
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
        line = self._ask_line(printable_line(prompt)).strip()
        if line == "!":
            raise _Declined
        return line

    def _line(self, text: str) -> None:
        self._console.print(printable_line(text), soft_wrap=True, markup=False, emoji=False, highlight=False)


class _Declined(Exception):
    """The person declined to answer."""


def parse_value(line: str, shape: dict[str, Any]) -> object:
    """An entered line as the primitive type of the schema. Raises ValueError with a message for the person."""
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
    """The values that an enumeration allows, titled or not; empty if it is none."""
    titled = [option["const"] for option in shape.get("oneOf", ()) if isinstance(option, dict) and "const" in option]
    return [str(value) for value in shape.get("enum", titled)]


def printable(text: str) -> str:
    """The text with control characters replaced, so that it cannot move the cursor; its lines stay lines."""
    return "".join(char if char in "\n\t" or not _is_control(char) else REPLACEMENT for char in text)


def printable_line(text: str) -> str:
    """The same in one line: what a server is called, or says, cannot pass for a line of the gateway's own."""
    return printable(text).replace("\n", REPLACEMENT)


def printable_json(text: str) -> str:
    """JSON that means the same and cannot move the cursor either: in its strings control characters are escaped."""
    return "".join(char if char == "\n" or not _is_control(char) else json.dumps(char)[1:-1] for char in text)


def _is_control(char: str) -> bool:
    category = unicodedata.category(char)
    return category[0] == "C" or category in _LINE_BREAKS


def line_reader(console: Console) -> Prompt | None:
    """A prompt at the console; None where stdin or the console is no terminal."""

    def ask(prompt: str) -> str:
        console.print(prompt, end="", markup=False, emoji=False, highlight=False)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line

    return ask if console.is_terminal and sys.stdin.isatty() else None


def _plain(params: Params) -> dict[str, Any]:
    return {key: bounds.parse_value(value) for key, value in params.items()}


def _properties(schema: object) -> list[tuple[str, dict[str, Any]]]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return [(name, shape) for name, shape in (properties or {}).items() if isinstance(shape, dict)]


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None
