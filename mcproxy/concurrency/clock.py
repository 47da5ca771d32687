"""Time as an argument, so that tests command it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

Sleep = Callable[[float], Awaitable[None]]
"""Waits for so many seconds."""
Clock = Callable[[], float]
"""Seconds that only go forward, from any start."""
