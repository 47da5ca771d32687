"""Limits the size of tools' results (`results.max_bytes`): shows a large result in part, and keeps the whole.

This module finds the limit of a result; `abridging` decides what to cut, and `kept` keeps the whole result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call, CallSubject, Complete, Handler, Outcome
from mcproxy.call.identity import Caller
from mcproxy.catalog.views.exposure import OUTPUT_SCHEMA
from mcproxy.catalog.views.view import Shown
from mcproxy.concurrency.turns import in_turns
from mcproxy.features.results.abridging import Abridgement
from mcproxy.features.results.kept import KeptOrigin, KeptResults, Origin
from mcproxy.gateway.feature import Core, Feature, Place, Placed
from mcproxy.protocol.envelope import META
from mcproxy.protocol.jsonrpc import InvalidMessage, Params, object_or_empty, parse_object, raw, size_of
from mcproxy.protocol.methods import Kind, Shape, Subject
from mcproxy.settings import Settings
from mcproxy.settings import UpstreamSettings as Spec

SIZE_HINT: Final = "anthropic/maxResultSizeChars"
"""The key in `_meta` of a tool or a result: the most characters that hosts that support it show whole."""
MAX_HINT: Final = 500_000
"""The most characters that such hosts show, whatever the hint."""

MAX_ARGUMENTS: Final = 8 * 1024
"""The most bytes of argument values that are kept with a result, to check reads against."""
_UNCLEAR: Final = Raw(b"[]")


class ResultLimits(Feature):
    """Shortens results that are over the limit of their upstream or tool."""

    name = "results"

    def __init__(self, core: Core) -> None:
        self._catalogue = core.catalogue
        self._task_ids = core.task_ids
        self._metrics = core.metrics
        self._limits = core.settings.proxy.results
        self._kept = KeptResults(self._limits, core.sealer, core.now)
        core.metrics.kept_result_bytes.set_function(lambda: self._kept.size)
        self._specs = _limited(core.settings)

    def adopt(self, previous: ResultLimits) -> None:
        self._kept = previous._kept
        self._kept.reconfigure(self._limits)

    def stages(self) -> Iterable[Placed]:
        return [
            Placed(Place.RESULT, "shortens oversized results, and answers reads of the whole", self.limited_results)
        ]

    def withholds(self, caller: Caller, upstream: str, tool: str, result: Raw) -> bool:
        """Whether the result of a tool is over its limit."""
        return self._over(caller, upstream, tool, object_or_empty(result)) is not None

    def limited_results(self, handler: Handler) -> Handler:
        """Shortens results that are too large, and answers reads of the whole."""

        async def limiting(call: Call) -> Outcome:
            if self._kept.names(call):
                return self._kept.read(call, self._may_read)
            outcome = await handler(call)
            if isinstance(outcome, Complete) and (call.row.may_fail or call.row.shape is Shape.TASK):
                return await self._limited(call, outcome)
            return outcome

        return limiting

    async def _limited(self, call: Call, outcome: Complete) -> Complete:
        if call.row.shape is not Shape.TASK:
            result = await self._shown(call, outcome.result)
            return outcome if result is outcome.result else replace(outcome, result=result)
        inner = outcome.result.get("result")
        before = {} if inner is None else object_or_empty(inner)
        after = await self._shown(call, before)
        return outcome if after is before else replace(outcome, result={**outcome.result, "result": raw(after)})

    async def _shown(self, call: Call, result: Params) -> Params:
        tool = self._tool(call)
        over = None if tool is None else self._over(call.caller, *tool, result)
        if over is None or tool is None:
            return result
        limit, entry = over
        origin = Origin(call.caller, *tool, None if call.row.subject is Subject.TASK else _judgeable(call))
        steps = Abridgement(self._kept, origin, limit).of(result, entry.get(OUTPUT_SCHEMA))
        shown, verdict = await in_turns(steps)
        if verdict is not None:
            self._metrics.large_results.labels(tool[0], verdict.value).inc()
        return shown

    def _may_read(self, caller: Caller, origin: KeptOrigin) -> bool:
        """Whether the policy and the settings would now let a caller make the call that produced the result."""
        layout = self._catalogue.layout(caller)
        if not layout.shows(origin.upstream):
            return False
        space = layout.space(origin.upstream)
        name = space.expose_name(origin.tool)
        shown = None if name is None else self._catalogue.whole_view(caller).find(Kind.TOOLS, name)
        entry = None if shown is None else shown.entry
        if not space.shows(Kind.TOOLS, origin.tool, entry):
            return False
        subject = CallSubject(origin.upstream, Kind.TOOLS, origin.tool, entry)
        return origin.arguments is None or self._catalogue.decision(caller, subject, origin.arguments).allowed

    def _over(self, caller: Caller, upstream: str, own: str, result: Params) -> tuple[int, Params] | None:
        """The limit in bytes that a result exceeds, and the entry of its tool; None if it exceeds none."""
        spec = self._specs.get(upstream)
        if spec is None:
            return None
        override = spec.tools.overrides.get(own)
        of_tool = None if override is None else override.results.max_bytes
        limit, size = of_tool or spec.results.max_bytes, size_of(result)
        if limit is None or size <= limit:
            return None
        entry = self._entry(caller, upstream, own)
        if of_tool is None:
            limit = max(limit, _hint(entry), _hint(result))
        return (limit, entry) if size > limit else None

    def _tool(self, call: Call) -> tuple[str, str] | None:
        """The upstream of the tool that the call is about, and the upstream's own name for it."""
        if call.row.subject is Subject.TASK:
            task = self._task_ids.of(call)
            return None if task is None else (task.link.upstream, task.tool)
        label = call.notes.label
        route = None if label is None else self._catalogue.routes(call.caller).find(Kind.TOOLS, label[1])
        return None if route is None else (route.shown.upstream, route.shown.own)

    def _entry(self, caller: Caller, upstream: str, own: str) -> Params:
        """The tool's entry as its caller sees it."""
        view = self._catalogue.view(caller)
        shown: tuple[Shown, ...] = (*view.lists[Kind.TOOLS], *view.unlisted)
        found = (each.entry for each in shown if each.upstream == upstream and each.own == own)
        return object_or_empty(next(found, Raw(b"{}")))


def _limited(settings: Settings) -> dict[str, Spec]:
    """The upstreams that have a limit, by name."""
    return {spec.name: spec for spec in settings.upstreams if spec.enabled and spec.limits_results}


def _judgeable(call: Call) -> Params:
    """The arguments that the upstream got; those beyond MAX_ARGUMENTS are replaced by a value no policy can judge."""
    arguments, subject = object_or_empty(call.params.get("arguments", b"{}")), call.notes.subject
    if subject is not None and subject.final is not None:
        arguments = subject.final(arguments, call.caller.principal)
    found: Params = {}
    left = MAX_ARGUMENTS
    for name, value in arguments.items():
        fits = len(value) <= left
        found[name] = value.copy() if fits else _UNCLEAR
        left -= fits and len(value)
    return found


def _hint(said: Params) -> int:
    """The hint of a tool or a result, in characters; 0 if it has none."""
    try:
        value = parse_object(said.get(META, Raw(b"{}"))).get(SIZE_HINT)
        return 0 if value is None else min(msgspec.json.decode(value, type=int), MAX_HINT)
    except (InvalidMessage, msgspec.MsgspecError):
        return 0
