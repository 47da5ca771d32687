"""Hooks: the operator's services that judge calls before they are sent, or judge their outcomes.

There are two stages in the pipeline, one per phase. A stage is absent if no hook uses its phase, and a call that no
hook selects passes through. A call that a hook changed goes through policy, overrides and approval like any other.
Hooks judge a tool's result, its errors and the questions that it asks, whether they come back from the call of the tool
or from a call about the task that it became. Few other messages of such a server pass; see `judged_messages`. Hooks are
asked only about calls that the policy allows, and nothing about the calls is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Final, NamedTuple, assert_never

import msgspec
import structlog
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.access.outgoing.webhooks import SignedWebhook, WebhookFailed
from mcproxy.call.calls import (
    Call,
    CallSubject,
    Complete,
    Failed,
    Handler,
    HookVerdict,
    InputRequired,
    LoginNeed,
    Outcome,
)
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.call.identity import Caller
from mcproxy.call.upstreams import Upstream, UpstreamEvent
from mcproxy.catalog.uri_matching import matcher, readings
from mcproxy.concurrency.retirement import Retirable
from mcproxy.concurrency.turns import in_turns
from mcproxy.gateway.feature import Core, Feature, Place, Placed, PlacedUpstream
from mcproxy.gateway.judged_messages import (
    JudgedClient,
    JudgedUpstream,
    formal_event,
    formal_state,
    is_judged,
    questions,
)
from mcproxy.gateway.resolving.call_subjects import CallSubjects
from mcproxy.gateway.resolving.task_ids import Task
from mcproxy.protocol.inputs import INPUT_REQUESTS, REQUEST_STATE
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
from mcproxy.settings.access.hooks import KINDS, HookSettings
from mcproxy.settings.differences import enabled

log = structlog.get_logger()

MAX_REASON: Final = 500
"""The most characters of a service's reason that the caller and the log get."""
REMEMBERED: Final = 1024
"""The most subjects whose hooks are remembered."""
MAX_REMEMBERED: Final = 256
"""The most characters of a subject's name for which its hooks are remembered."""

_ARGUMENTS: Final = "arguments"
_TOOL_CALL: Final = "tools/call"
_RESULT: Final = "result"
_ERROR: Final = "error"
_REQUESTS: Final = "requests"
_JUDGED_STATE: Final = frozenset({_RESULT, _ERROR, INPUT_REQUESTS})
"""The members of a task's state that hooks judge."""
_OF_QUESTIONS: Final = frozenset({"resultType", INPUT_REQUESTS, REQUEST_STATE})
"""The members of a result that asks for input. Hooks judge the questions; the client does not see the state."""
MAX_VERDICTS: Final = 32
"""The most verdicts on one call that the audit keeps; a server may ask any number of questions."""
_MEMBERS: Final = frozenset({"content", "structuredContent", "isError", "messages", "contents", "description"})
"""The members of a result that a hook may replace; it can only read the others."""


class _Hook(msgspec.Struct, frozen=True):
    settings: HookSettings
    webhook: SignedWebhook

    def concerns(self, method: str, upstream: str, own: str) -> bool:
        """Whether the hook selects calls of the entry that its upstream calls `own`.

        A URI is selected if any of its readings is. A URI whose readings cannot be determined is always selected.
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
    """The method name that the hooks get."""

    @property
    def enforces(self) -> bool:
        return any(hook.settings.mode == "enforce" for hook in self.hooks)


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
        """Whether it is already clear that no hook selects the call."""
        if call.row.name in KINDS:
            return self(call) is None and call.notes.subject is not None
        return call.row.subject is not Subject.TASK or self(call) is None

    def __call__(self, call: Call) -> _Selected | None:
        """The hooks to ask about a call.

        None if no hook is known to select it: the upstream's name for an unlisted entry is not known yet.
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


class CallHooks(Feature):
    """Asks hooks before a call and about its outcome; withholds what a server sends that no hook judges."""

    name = "hooks"

    def __init__(self, core: Core) -> None:
        self._settings = core.settings.access.hooks
        self._subject_of = core.subject_of
        self._task_ids = core.task_ids
        self._learn = core.resolver.learn
        self._metrics = core.metrics
        self._hooks: tuple[_Hook, ...] = ()
        self._screened = frozenset(name for name in enabled(core.settings) if is_judged(self._settings, name))
        """Upstreams from which an enforcing hook judges anything."""
        self._use({})

    def adopt(self, previous: CallHooks) -> None:
        """Keeps the connections of hooks whose settings did not change."""
        self._use({hook.settings: hook for hook in previous._hooks})

    def _use(self, open_hooks: Mapping[HookSettings, _Hook]) -> None:
        self._hooks = tuple(open_hooks.get(each) or _Hook(each, SignedWebhook(each)) for each in self._settings)
        self._after = _Selection(self._of("after"), self._subject_of, self._task_ids.of)

    def stages(self) -> Iterable[Placed]:
        stages = []
        if self._of("before"):
            stages.append(Placed(Place.CHECK, "asks hooks before the call", self.before))
        if self._after.hooks:
            stages.append(Placed(Place.JUDGE, "asks hooks about the outcome", self.after))
        return stages

    def upstream_stages(self) -> Iterable[PlacedUpstream]:
        if not self._screened:
            return []
        return [PlacedUpstream(Place.SEND, "withholds messages that no hook judges", self._quiet)]

    def _quiet(self, upstream: Upstream) -> Upstream:
        return JudgedUpstream(upstream) if upstream.name in self._screened else upstream

    def screen(self, event: UpstreamEvent) -> UpstreamEvent | None:
        return formal_event(event) if event.upstream in self._screened else event

    def resources(self) -> Iterable[Retirable]:
        return [hook.webhook for hook in self._hooks]

    def before(self, handler: Handler) -> Handler:
        """Asks the hooks of the phase `before`, which let the call continue, change its arguments or refuse it."""
        select = _Selection(self._of("before"), self._subject_of)

        def asking_before(call: Call) -> Awaitable[Outcome]:
            return handler(call) if select.passes(call) else self._ask_before(handler, call, select)

        return asking_before

    def after(self, handler: Handler) -> Handler:
        """Asks the hooks of the phase `after` about a result; they let it pass, change it or withhold it."""
        select = self._after

        def asking_after(call: Call) -> Awaitable[Outcome]:
            return handler(call) if select.passes(call) else self._ask_after(handler, call, select)

        return asking_after

    def judges(self, upstream: str, tool: str) -> bool:
        return any(hook.settings.mode == "enforce" for hook in self._after.find(_TOOL_CALL, upstream, tool))

    def withholds(self, caller: Caller, upstream: str, tool: str, result: Raw) -> bool:
        return self.judges(upstream, tool)

    async def _ask_before(self, handler: Handler, call: Call, select: _Selection) -> Outcome:
        selected = await self._select(select, call)
        if selected is not None and _is_allowed(call, selected.subject):
            for hook in selected.hooks:
                verdict = await self._ask(hook, call, _told(hook, call, selected), _ARGUMENTS)
                if verdict.decision == "deny":
                    return _Denied(verdict.reason).failed
                if verdict.decision == "change":
                    call = call.with_params({**call.params, _ARGUMENTS: verdict.body[_ARGUMENTS]})
        return await handler(call)

    async def _select(self, select: _Selection, call: Call) -> _Selected | None:
        if call.notes.subject is None and call.row.name in KINDS:
            # Not listed yet: fetch the list, as the router would, to learn the upstream's name for the entry.
            await self._learn(call)
        return select(call)

    async def _ask_after(self, handler: Handler, call: Call, select: _Selection) -> Outcome:
        # Selected before the call, so that the result is judged even if a reload hides the tool meanwhile.
        selected = await self._select(select, call)
        if selected is None:
            return await handler(call)
        made = call
        if selected.enforces:
            made = replace(call, client=JudgedClient(call.client, partial(self._check_question, call, selected)))
        try:
            return await self._judged(call, selected, await self._outcome(handler, made, selected))
        except _Denied as denied:
            return denied.failed

    async def _outcome(self, handler: Handler, call: Call, selected: _Selected) -> Outcome:
        """Returns the outcome of a call. Raises McpError; if the call was sent, the hooks have let the error pass."""
        elsewhere = call.notes.upstream_seconds
        try:
            return await handler(call)
        except McpError as refusal:
            if call.notes.upstream_seconds != elsewhere:  # else the sentence is the gateway's
                await self._judge(call, selected, _ERROR, raw(refusal.error()))
            raise

    async def _judged(self, call: Call, selected: _Selected, outcome: Outcome) -> Outcome:
        """Returns the outcome after the hooks judged it. Raises McpError if they withhold it."""
        match outcome:
            case Complete() if _describes_task(call):
                return await self._judged_state(call, selected, outcome)
            case Complete(result=members):
                result = raw(members)
                passed = await self._judge(call, selected, _RESULT, result)
                return outcome if passed is result else _with_result(outcome, passed)
            case InputRequired(requests=requests, result=members):
                await self._judge(call, selected, _REQUESTS, questions(tuple(requests.values())))
                if not selected.enforces:
                    return outcome
                return replace(outcome, result={name: members[name] for name in members if name in _OF_QUESTIONS})
            case Failed(login=LoginNeed(upstream=upstream) as need):
                if not selected.enforces:
                    return outcome
                error = ErrorObject(outcome.error.code, f"upstream {upstream!r} wants a login")
                return replace(outcome, error=error, login=replace(need, why=""))
            case Failed(party=Party.UPSTREAM, error=error):
                await self._judge(call, selected, _ERROR, raw(error))
                return outcome
            case Failed():
                return outcome
            case _:
                assert_never(outcome)

    async def _judged_state(self, call: Call, selected: _Selected, outcome: Complete) -> Complete:
        state = outcome.result
        if _RESULT in state:
            passed = await self._judge(call, selected, _RESULT, state[_RESULT])
            if passed is not state[_RESULT]:
                state = {**state, _RESULT: passed}
        for member, told in ((_ERROR, _ERROR), (INPUT_REQUESTS, _REQUESTS)):
            if member in state:
                await self._judge(call, selected, told, state[member])
        if selected.enforces:
            state = formal_state(state, _JUDGED_STATE)
        return outcome if state is outcome.result else replace(outcome, result=state, findings=None)

    async def _check_question(self, call: Call, selected: _Selected, request: InputRequest) -> None:
        """Raises McpError if hooks refuse the question."""
        await self._judge(call, selected, _REQUESTS, questions((request,)))

    async def _judge(self, call: Call, selected: _Selected, member: str, value: Raw) -> Raw:
        """Asks all hooks about what the call's upstream sent; their payload has it under the key `member`.

        Returns what the client gets instead. Raises McpError if it gets nothing.
        """
        if selected.enforces:
            await _check_unambiguous(value, selected)
        for hook in selected.hooks:
            verdict = await self._ask(hook, call, {**_told(hook, call, selected), member: value}, member)
            if verdict.decision == "deny":
                raise _Denied(verdict.reason)
            if verdict.decision == "change":
                value = _changed(value, parse_object(verdict.body[_RESULT]))
        return value

    def _of(self, phase: str) -> tuple[_Hook, ...]:
        return tuple(hook for hook in self._hooks if hook.settings.phase == phase)

    async def _ask(self, hook: _Hook, call: Call, payload: Params, changeable: str) -> _Verdict:
        """The verdict that counts. `changeable` is the member that may be changed.

        Raises McpError if the service failed and `fail` says to refuse calls in that case.
        """
        settings, reason, body = hook.settings, "", {}
        try:
            answer = await hook.webhook(payload)
            # An empty answer (202, 204) allows the call. An object without a decision, such as {}, decides nothing.
            if answer is None:
                decision = "allow"
            else:
                decision = parse_text(answer.get("decision", b"")) or ""
                reason = (parse_text(answer.get("reason", b'""')) or "")[:MAX_REASON]
                body = _body(decision, answer, changeable, call)
        except WebhookFailed as failed:
            decision = "failed"
            log.warning("a hook failed", url=settings.url, why=str(failed), fail=settings.fail)
        self._metrics.hooks.labels(settings.phase, settings.mode, decision).inc()
        noted = HookVerdict(settings.phase, settings.mode, decision, reason)
        call.notes.verdicts = (*call.notes.verdicts[: MAX_VERDICTS - 1], noted)
        if settings.mode == "audit":
            return _ALLOW
        if decision == "failed" and settings.fail == "closed":
            sentence = "a check that every such call needs could not be made; try again later"
            raise McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)
        return _ALLOW if decision == "failed" else _Verdict(decision, reason, body)


class _Verdict(NamedTuple):
    decision: str
    reason: str
    body: Params


_ALLOW: Final = _Verdict("allow", "", {})


class _Denied(McpError):
    """A hook denied the call or its outcome."""

    def __init__(self, said: str) -> None:
        sentence = f"this call was denied by a check of the gateway{f': {said}' if said else ''}"
        super().__init__(INVALID_REQUEST, sentence, reason=Reason.DENIED)

    @property
    def failed(self) -> Failed:
        return Failed(self.error(), Party.GATEWAY, Reason.DENIED)


async def _check_unambiguous(result: Raw, selected: _Selected) -> None:
    """Raises McpError for a result with a repeated member: a hook and the client may read different values."""
    if is_distinct(result) or (flaw := await in_turns(find_repeated(result))) is None:
        return
    sentence = f"upstream {selected.subject.upstream!r} sent a result that no hook can judge: it {flaw}"
    raise McpError(INTERNAL_ERROR, sentence, reason=Reason.DENIED)


def _is_allowed(call: Call, subject: CallSubject) -> bool:
    """Whether the policy allows a call: hooks are asked only about such calls."""
    if subject.judge is None or subject.decision is not None:
        return True
    try:
        arguments = object_or_empty(call.params.get(_ARGUMENTS, b"{}"))
        final = arguments if subject.final is None else subject.final(arguments, call.caller.principal)
    except McpError:
        return False
    return subject.judge(final).allowed


def _with_result(outcome: Complete, result: Raw) -> Complete:
    """A copy of `outcome` with another result."""
    members = parse_object(result)
    is_error = bytes(members.get("isError", b"")) == b"true"
    return replace(outcome, result=members, is_error=is_error, findings=None)


def _describes_task(call: Call) -> bool:
    """Whether the outcome is the state of a task rather than a tool's result."""
    return call.row.subject is Subject.TASK and not call.row.may_fail


def _changed(result: Raw, members: Params) -> Raw:
    """The result, with the members from the hook in place of its own."""
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


def _body(decision: str, answer: Params, member: str, call: Call) -> Params:
    """The body of a service's decision.

    Raises WebhookFailed for an unknown decision or a body that lacks what it needs.
    """
    if decision not in {"allow", "deny", "change"}:
        raise WebhookFailed("its decision is not allow, deny or change")
    if decision != "change":
        return {}
    if member in (_ERROR, _REQUESTS):
        raise WebhookFailed(f"its decision is change, and {member!r} can only be allowed or denied")
    try:
        body = parse_object(answer.get("body", Raw(b"null")))
    except InvalidMessage as error:
        raise WebhookFailed("its decision is change, and it has no body") from error
    if member not in body or not is_object(body[member]):
        raise WebhookFailed(f"its decision is change, and its body has no object {member!r}")
    if member == _ARGUMENTS and call.row.subject is Subject.RESOURCE:
        raise WebhookFailed("its decision is change, and a read has no arguments")
    return body
