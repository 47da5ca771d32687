"""For a handshake client: repeats a call whose upstream asks for input in its results (2026-07-28, mrtr).

Each question is put to the client while its call lasts, and the call is made again with the answers, a bounded number
of times. Keeps nothing between calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
from msgspec import Raw

from mcproxy.call.calls import Call, Handler, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError
from mcproxy.concurrency.clock import Sleep
from mcproxy.protocol.inputs import INPUT_RESPONSES, REQUEST_STATE, UNANSWERED, missing_capabilities, named
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, Params, parse_text, raw

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 0.25
"""Seconds before a call that needs no input is sent again: from FIRST_PAUSE, each pause is twice the last, up to this.

An upstream sheds load by such a result (mrtr).
"""


async def with_input(
    handler: Handler, call: Call, required: InputRequired, rounds: int, sleep: Sleep, mint: Callable[[], str]
) -> Outcome:
    """The final outcome of `call`, whose first outcome was `required`, in at most `rounds` more calls.

    Raises McpError. `mint` makes ids of elicitations.
    """
    pause = FIRST_PAUSE
    for _ in range(rounds):
        if required.requests:
            pause = FIRST_PAUSE
        else:
            await sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        call.notes.asked, call.notes.approval = True, required.approval
        answers = await _answers(call, required.requests, mint)
        outcome = await handler(call.with_params(_retry(call.params, required, answers)))
        if not isinstance(outcome, InputRequired):
            return outcome
        required = outcome
    raise McpError(INTERNAL_ERROR, f"the upstream still needs input after {rounds} rounds (bridge.max_rounds)")


def _retry(params: Params, required: InputRequired, answers: dict[str, Raw]) -> Params:
    # mrtr, Client Requirements: the latest result's `requestState` unchanged, and none where it had none.
    retry = {**params}
    if required.requests:
        retry[INPUT_RESPONSES] = raw(answers)
    if required.state is not None:
        retry[REQUEST_STATE] = raw(required.state)
    return retry


async def _answers(call: Call, requests: dict[str, InputRequest], mint: Callable[[], str]) -> dict[str, Raw]:
    """The answers to all questions, which are asked at once; the first that fails ends the call. Raises McpError."""
    answers: dict[str, Raw] = {}
    failures: list[McpError] = []

    async def put(key: str, request: InputRequest) -> None:
        try:
            answers[key] = await _answer(call, _with_id(request, mint))
        except McpError as failure:
            failures.append(failure)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for key, request in requests.items():
            tasks.start_soon(put, key, request)
    if failures:
        raise failures[0]
    return answers


async def _answer(call: Call, request: InputRequest) -> Raw:
    missing = missing_capabilities(call.caller.capabilities, request.method, request.params)
    if missing:
        sentence = f"the upstream needs {request.method}, and the client did not declare {named(missing)}"
        raise McpError(INVALID_REQUEST, sentence)
    try:
        return await call.client.ask(request)
    except McpError:
        # InputResponses hold results alone: a declined elicitation is a result, failed sampling has none.
        if request.method not in UNANSWERED:
            raise
        return UNANSWERED[request.method]


def _with_id(request: InputRequest, mint: Callable[[], str]) -> InputRequest:
    """The elicitation by URL with the id that 2025-11-25 requires and 2026-07-28 lacks."""
    if parse_text(request.params.get("mode", b"")) != "url" or "elicitationId" in request.params:
        return request
    return InputRequest(request.method, {**request.params, "elicitationId": raw(mint())})
