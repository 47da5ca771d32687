"""Finds the handler for a path and a method. Answers nothing itself."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final
from urllib.parse import unquote

import msgspec

from mcproxy.http.server.messages import Answered, Request

RoutedHandler = Callable[[Request, Mapping[str, str]], Awaitable[Answered]]
"""A handler that is also given the values of the names in its route's path."""

_NAME: Final = re.compile(r"\{([a-z]+)\}")


class Route(msgspec.Struct, frozen=True):
    """A path for one method. `{name}` matches a segment that is not empty, `{rest...}` at the end all that follows."""

    method: str
    path: str
    handler: RoutedHandler


class NotFound(Exception):
    """No route has this path (404)."""


class MethodNotAllowed(Exception):
    """The path has routes for other methods only (405)."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed: Final = ", ".join(sorted(allowed))
        super().__init__(self.allowed)


class PathRouter:
    """Routes by path: one without names goes before others; of those, the first that matches."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._fixed: dict[str, dict[str, RoutedHandler]] = {}
        self._named: dict[re.Pattern[str], dict[str, RoutedHandler]] = {}
        for route in routes:
            if "{" in route.path:
                handlers = self._named.setdefault(_pattern(route.path), {})
            else:
                handlers = self._fixed.setdefault(route.path, {})
            handlers.setdefault(route.method, route.handler)

    def find(self, request: Request) -> tuple[RoutedHandler, Mapping[str, str]]:
        """The handler, and the values of the names in its path. Raises NotFound and MethodNotAllowed."""
        handlers = self._fixed.get(request.target) or self._fixed.get(request.path)
        if handlers is not None:
            return _of_method(handlers, request.method), {}
        for pattern, handlers in self._named.items():
            found = pattern.fullmatch(request.raw_path)
            if found is not None:
                names = {name: unquote(segment, errors="replace") for name, segment in found.groupdict().items()}
                return _of_method(handlers, request.method), names
        raise NotFound


def _of_method(handlers: Mapping[str, RoutedHandler], method: str) -> RoutedHandler:
    if method not in handlers:
        raise MethodNotAllowed(handlers)
    return handlers[method]


def _pattern(path: str) -> re.Pattern[str]:
    head, rest, _ = path.partition("{rest...}")
    parts = _NAME.split(head)
    fixed = [re.escape(part) for part in parts[::2]]
    names = [f"(?P<{name}>[^/]+)" for name in parts[1::2]]
    pattern = fixed[0] + "".join(name + part for name, part in zip(names, fixed[1:], strict=True))
    return re.compile(pattern + ("(?P<rest>.*)" if rest else ""))
