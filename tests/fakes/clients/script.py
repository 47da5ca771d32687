"""Plays scripts through one SDK's verbs, and keeps the transcript of each. Knows no SDK."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio

Json = dict[str, Any]

PATIENCE = 60.0
"""Seconds that any one step may take."""
HOP_META = {"progressToken", "io.modelcontextprotocol/subscriptionId"}


class OnProgress(Protocol):
    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


Verb = Callable[[Json, OnProgress | None], Awaitable[Json]]


@dataclass
class Transcript:
    """What one client met, in the order in which it met it."""

    server: Json = field(default_factory=dict)
    steps: list[Json] = field(default_factory=list)
    notifications: list[Json] = field(default_factory=list)
    questions: list[Json] = field(default_factory=list)
    _news: anyio.Event = field(default_factory=anyio.Event)

    def heard(self, notification: Json) -> None:
        """Notes a notification; progress stands with its step."""
        if notification["method"] != "notifications/progress":
            self.notifications.append({key: notification[key] for key in ("method", "params") if key in notification})
            self._news.set()
            self._news = anyio.Event()

    def asked(self, method: str, params: Json) -> None:
        """Notes a question, without what belongs to one hop."""
        meta = {key: value for key, value in (params.pop("_meta", None) or {}).items() if key not in HOP_META}
        self.questions.append({"method": method, "params": {**params, "_meta": meta} if meta else params})

    async def hears(self, method: str, since: int) -> None:
        """Returns once a notification of `method` has come, from the one at `since` on."""
        while all(notification["method"] != method for notification in self.notifications[since:]):
            await self._news.wait()

    def dump(self) -> str:
        parts = ("server", "steps", "notifications", "questions")
        return json.dumps({part: getattr(self, part) for part in parts})


def serve(connect_and_play: Callable[[Json, Transcript], object]) -> None:
    """Plays each script that comes as a line on stdin, with a connection of its own, and prints the transcript."""
    for line in sys.stdin:
        transcript = Transcript()
        connect_and_play(json.loads(line), transcript)
        print(transcript.dump(), flush=True)


async def play(script: Json, verbs: Mapping[str, Verb], transcript: Transcript, error: type[Exception]) -> None:
    """Takes each step in turn. `error` is what the SDK raises for a JSON-RPC error, with its `error` attribute."""
    before = began = 0
    for step in script["steps"]:
        before, began = began, len(transcript.notifications)
        script["answers"].update(step.get("answers", {}))
        reports: list[list[Any]] = []
        entry: Json = {"late": True}
        with anyio.move_on_after(PATIENCE):
            if step["do"] == "await":
                await transcript.hears(step["method"], since=before)
                entry = {}
            else:
                on_progress = None if step.get("quiet") else _into(reports)
                entry = await _outcome(verbs[step["do"]](step.get("params", {}), on_progress), error)
        transcript.steps.append({"do": step["do"], **entry, **({"progress": reports} if reports else {})})


def _into(reports: list[list[Any]]) -> OnProgress:
    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append([progress, total, message])

    return on_progress


async def _outcome(answer: Awaitable[Json], error: type[Exception]) -> Json:
    try:
        return {"result": await answer}
    except error as refusal:
        return {"error": dumped(refusal.error)}  # type: ignore[attr-defined]  # each SDK's own exception class


def dumped(model: Any) -> Json:
    """A pydantic model as the JSON that it was read from: what was not set stays away."""
    members: Json = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return members
