"""Starting a task in a group that another object owns."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
"""Starts a task, as the `start_soon` of a task group does."""
