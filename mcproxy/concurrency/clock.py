"""Types of clock and sleep functions that are passed as arguments, so that tests control time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

Sleep = Callable[[float], Awaitable[None]]
"""Waits for so many seconds."""
Clock = Callable[[], float]
"""Monotonic seconds, from any start."""
