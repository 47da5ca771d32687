"""Hooks: services of the operator's that are asked about calls before they are sent, or about their results.

Two stages of the pipeline, each absent where no hook has its phase; a call that no hook selects passes through. A call
that a hook changed goes through policy, overrides and approval like any other. The result of a tool is judged by
whichever call it comes back: that of the tool, or one about the task that this became. Asks only about calls that the
policy allows; keeps nothing of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
import structlog
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.access.outgoing.webhooks import SignedWebhook, WebhookFailed
from mcproxy.call.calls import Call, CallSubject, Complete, Failed, Handler, HookVerdict, Outcome
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.catalog.uri_matching import matcher, readings
from mcproxy.concurrency.retirement import Retirement
from mcproxy.concurrency.turns import in_turns
from mcproxy.gateway.component import Component, Reconfiguration
from mcproxy.gateway.resolving.call_subjects import CallSubjects
from mcproxy.gateway.resolving.task_ids import Task, TaskIds
from mcproxy.protocol.json.repeated_members import find_repeated, is_distinct
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    ErrorObject,
    InvalidMessage,
    Params,
    first_level,
    is_object,
    object_or_empty,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import URI_KINDS, Kind, Subject
from mcproxy.protocol.tasks import TASK_ID
from mcproxy.settings import Settings
from mcproxy.settings.access.hooks import KINDS, HookSettings
from mcproxy.telemetry.metrics import Metrics

log = structlog.get_logger()

MAX_REASON: Final = 500
"""Characters of a service's reason that are passed on to the caller and the log."""
REMEMBERED: Final = 1024
"""Subjects whose hooks are remembered."""
MAX_REMEMBERED: Final = 256
"""Characters of a subject's name, above which its hooks are not remembered."""

_ARGUMENTS: Final = "arguments"
_TOOL_CALL: Final = "tools/call"
_RESULT: Final = "result"
_MEMBERS: Final = frozenset({"content", "structuredContent", "isError", "messages", "contents", "description"})
"""The members of a result that a hook may replace; the others it only sees."""


class _Hook(msgspec.Struct, frozen=True):
    settings: HookSettings
    webhook: SignedWebhook

    def concerns(self, method: str, upstream: str, own: str) -> bool:
        """Whether the hook selects calls of the entry that its upstream calls `own`.

        A URI is selected if one of its readings is; one whose readings cannot be told, always.
        """
        settings, kind = self.settings, KINDS[method]
        if method not in settings.on or not any(fnmatchcase(upstream, glob) for glob in settings.upstreams):
            return False
        globs = settings.globs(kind)
        if kind in URI_KINDS:
            found = readings(own)
            return not found or any(map(matcher(globs), found))
        return any(fnmatchcase(own, glob) for glob in globs)


class _Selected(NamedTuple):
    hooks: tuple[_Hook, ...]
    subject: CallSubject
    method: str
    """The method that the hooks are told."""


class _Selection:
    """Finds the hooks of one phase for a call. Remembers the latest subjects.

    With `task_of`, a call about a task that returns a tool's result counts as a call of that tool.
    """

    def __init__(
        self,
        hooks: tuple[_Hook, ...],
        subject_of: CallSubjects,
        task_of: Callable[[Call], Task | None] = lambda call: None,
    ) -> None:
        self.hooks: Final = hooks
        self._subject_of = subject_of
        self._task_of = task_of
        self._concerned = lru_cache(REMEMBERED)(self._find)

    def passes(self, call: Call) -> bool:
        """Whether the call is known to concern no hook."""
        if call.row.name in KINDS:
            return self(call) is None and call.notes.subject is not None
        return call.row.subject is not Subject.TASK or self(call) is None

    def __call__(self, call: Call) -> _Selected | None:
        """The hooks to ask about a call.

        None if there is none as far as is known: an unlisted entry has no known own name yet.
        """
        method = call.row.name
        if call.row.subject is Subject.TASK:
            task = self._task_of(call)
            return None if task is None else self._selected(_TOOL_CALL, _tool_of(task))
        if method not in KINDS:
            return None
        return self._selected(method, call.notes.subject or self._subject_of(call))

    def _selected(self, method: str, subject: CallSubject) -> _Selected | None:
        if not subject.upstream or subject.kind is None:
            return None
        hooks = self.find(method, subject.upstream, subject.own)
        return _Selected(hooks, subject, method) if hooks else None

    def find(self, method: str, upstream: str, own: str) -> tuple[_Hook, ...]:
        """The hooks for the entry that its upstream calls `own`."""
        find = self._concerned if len(own) <= MAX_REMEMBERED else self._find
        return find(method, upstream, own)

    def _find(self, method: str, upstream: str, own: str) -> tuple[_Hook, ...]:
        return tuple(hook for hook in self.hooks if hook.concerns(method, upstream, own))


def _tool_of(task: Task) -> CallSubject:
    return CallSubject(task.link.upstream, Kind.TOOLS, task.tool)


class CallHooks(Component):
    """`before` and `after` are its stages.

    `subject_of` finds what a call is about, as far as its caller may use it. `learn` fetches the list that an unknown
    name may be in, and raises McpError.
    """

    goes_by = frozenset({"access"})

    def __init__(
        self,
        settings: Settings,
        subject_of: CallSubjects,
        task_ids: TaskIds,
        learn: Callable[[Call], Awaitable[None]],
        metrics: Metrics,
    ) -> None:
        self._subject_of = subject_of
        self._task_ids = task_ids
        self._learn = learn
        self._metrics = metrics
        self._hooks: tuple[_Hook, ...] = ()
        self._after = _Selection((), subject_of)
        self._retirement = Retirement()
        self._take(settings)

    def reconfigure(self, change: Reconfiguration) -> None:
        self._take(change.settings)

    def _take(self, settings: Settings) -> None:
        """Puts other hooks in force; a hook whose settings are equal keeps its connections."""
        known = {hook.settings: hook for hook in self._hooks}
        wanted = settings.access.hooks
        self._hooks = tuple(known.get(each) or _Hook(each, SignedWebhook(each)) for each in wanted)
        self._retirement.take(hook.webhook for each, hook in known.items() if each not in wanted)
        self._after = _Selection(self._of("after"), self._subject_of, self._task_ids.of)

    async def run(self) -> None:
        await self._retirement.run(lambda: [hook.webhook for hook in self._hooks])

    def before(self, handler: Handler) -> Handler:
        """Asks the hooks of the phase `before` about a call; they let it go on, change its arguments or refuse it."""
        select = _Selection(self._of("before"), self._subject_of)

        def asking_before(call: Call) -> Awaitable[Outcome]:
            return handler(call) if select.passes(call) else self._ask_before(handler, call, select)

        return asking_before if select.hooks else handler

    def after(self, handler: Handler) -> Handler:
        """Asks the hooks of the phase `after` about a result; they let it pass, change or withhold it."""
        select = self._after

        def asking_after(call: Call) -> Awaitable[Outcome]:
            return handler(call) if select.passes(call) else self._ask_after(handler, call, select)

        return asking_after if select.hooks else handler

    def withholds(self, upstream: str, tool: str) -> bool:
        """Whether a tool's results may be sent nowhere before a hook has judged them."""
        return any(hook.settings.mode == "enforce" for hook in self._after.find(_TOOL_CALL, upstream, tool))

    async def _ask_before(self, handler: Handler, call: Call, select: _Selection) -> Outcome:
        selected = await self._select(select, call)
        if selected is not None and _is_allowed(call, selected.subject):
            for hook in selected.hooks:
                verdict, body = await self._ask(hook, call, _told(hook, call, selected))
                if verdict == "deny":
                    return _denied(call)
                if verdict == "change":
                    call = call.with_params({**call.params, _ARGUMENTS: body[_ARGUMENTS]})
        return await handler(call)

    async def _select(self, select: _Selection, call: Call) -> _Selected | None:
        if call.notes.subject is None and call.row.name in KINDS:
            # Not listed yet: fetch the upstream's list, as the router would, to learn the entry's own name.
            await self._learn(call)
        return select(call)

    async def _ask_after(self, handler: Handler, call: Call, select: _Selection) -> Outcome:
        # Selected before the call: its result is judged even if a reload hides the tool from its caller while it runs.
        selected = await self._select(select, call)
        outcome = await handler(call)
        result = _result(call, outcome)
        if result is None or selected is None:
            return outcome
        if any(hook.settings.mode == "enforce" for hook in selected.hooks):
            await _check_unambiguous(result, selected)
        for hook in selected.hooks:
            verdict, body = await self._ask(hook, call, {**_told(hook, call, selected), _RESULT: result})
            if verdict == "deny":
                return _denied(call)
            if verdict == "change":
                result = _changed(result, parse_object(body[_RESULT]))
                outcome = _with_result(call, outcome, result)
        return outcome

    def _of(self, phase: str) -> tuple[_Hook, ...]:
        return tuple(hook for hook in self._hooks if hook.settings.phase == phase)

    async def _ask(self, hook: _Hook, call: Call, payload: Params) -> tuple[str, Params]:
        """The decision that counts, and its body.

        Raises McpError where the service failed and `fail` says to refuse calls then.
        """
        settings, reason, body = hook.settings, "", {}
        try:
            answer = await hook.webhook(payload)
            # A service with nothing to say allows (202, 204); an object without a decision, {} too, decides nothing.
            if answer is None:
                decision = "allow"
            else:
                decision = parse_text(answer.get("decision", b"")) or ""
                reason = (parse_text(answer.get("reason", b'""')) or "")[:MAX_REASON]
                body = _body(decision, answer, settings, call)
        except WebhookFailed as failed:
            decision = "failed"
            log.warning("a hook failed", url=settings.url, why=str(failed), fail=settings.fail)
        self._metrics.hooks.labels(settings.phase, settings.mode, decision).inc()
        call.notes.verdicts = (*call.notes.verdicts, HookVerdict(settings.phase, settings.mode, decision, reason))
        if settings.mode == "audit":
            return "allow", {}
        if decision == "failed" and settings.fail == "closed":
            sentence = "a check that every such call needs could not be made; try again later"
            raise McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)
        return ("allow", {}) if decision == "failed" else (decision, body)


async def _check_unambiguous(result: Raw, selected: _Selected) -> None:
    """Raises McpError for a result with a repeated member, of which a hook and the client may read different values."""
    if is_distinct(result) or (flaw := await in_turns(find_repeated(result))) is None:
        return
    sentence = f"upstream {selected.subject.upstream!r} sent a result that no hook can judge: it {flaw}"
    raise McpError(INTERNAL_ERROR, sentence, reason=Reason.DENIED)


def _is_allowed(call: Call, subject: CallSubject) -> bool:
    """Whether the policy allows a call: hooks are told of no other."""
    if subject.judge is None or subject.decision is not None:
        return True
    try:
        arguments = object_or_empty(call.params.get(_ARGUMENTS, b"{}"))
        final = arguments if subject.final is None else subject.final(arguments, call.caller.principal)
    except McpError:
        return False
    return subject.judge(final).allowed


def _result(call: Call, outcome: Outcome) -> Raw | None:
    """The tool's result in an outcome, be it in the state of a task; None where there is none."""
    if not isinstance(outcome, Complete):
        return None
    return outcome.result.get(_RESULT) if _describes_task(call) else raw(outcome.result)


def _with_result(call: Call, outcome: Outcome, result: Raw) -> Outcome:
    """`outcome` with another result in place of its own."""
    assert isinstance(outcome, Complete)
    if _describes_task(call):
        return replace(outcome, result={**outcome.result, _RESULT: result}, findings=None)
    members = parse_object(result)
    is_error = bytes(members.get("isError", b"")) == b"true"
    return replace(outcome, result=members, is_error=is_error, findings=None)


def _describes_task(call: Call) -> bool:
    """Whether the outcome is the state of a task rather than a tool's result."""
    return call.row.subject is Subject.TASK and not call.row.may_fail


def _changed(result: Raw, members: Params) -> Raw:
    """The result with the members that the hook replaced."""
    kept = {key: value for key, value in object_or_empty(result).items() if key not in _MEMBERS}
    return raw({**kept, **{key: value for key, value in members.items() if key in _MEMBERS}})


def _told(hook: _Hook, call: Call, selected: _Selected) -> Params:
    """The JSON that a service is sent about a call."""
    subject = selected.subject
    principal = call.caller.principal
    told = first_level(
        {
            "type": hook.settings.phase,
            "method": selected.method,
            "upstream": subject.upstream,
            "subject": subject.own,
            "principal": principal.name,
            "roles": sorted(principal.roles),
            "endpoint": call.caller.endpoint,
        }
    )
    if call.row.subject is Subject.TASK:
        return {**told, "task": call.params[TASK_ID]}
    return {**told, _ARGUMENTS: call.params[_ARGUMENTS]} if _ARGUMENTS in call.params else told


def _body(decision: str, answer: Params, settings: HookSettings, call: Call) -> Params:
    """The body of a service's decision.

    Raises WebhookFailed for an unknown decision or a body that lacks what it needs.
    """
    if decision not in {"allow", "deny", "change"}:
        raise WebhookFailed("its decision is not allow, deny or change")
    if decision != "change":
        return {}
    member = _ARGUMENTS if settings.phase == "before" else _RESULT
    try:
        body = parse_object(answer.get("body", Raw(b"null")))
    except InvalidMessage as error:
        raise WebhookFailed("its decision is change, and it has no body") from error
    if member not in body or not is_object(body[member]):
        raise WebhookFailed(f"its decision is change, and its body has no object {member!r}")
    if settings.phase == "before" and call.row.subject is Subject.RESOURCE:
        raise WebhookFailed("its decision is change, and a read has no arguments")
    return body


def _denied(call: Call) -> Failed:
    said = call.notes.verdicts[-1].reason
    sentence = f"this call was denied by a check of the gateway{f': {said}' if said else ''}"
    return Failed(ErrorObject(INVALID_REQUEST, sentence), Party.GATEWAY, Reason.DENIED)
