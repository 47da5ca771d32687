"""What is denied to somebody makes no difference to it (R38), with all that may be configured for models.

Arguments that are overridden, results that are limited, calls that a person approves, and tools found by meaning.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
from aiohttp import web
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mcproxy.call.calls import InputRequired, Outcome
from mcproxy.call.clients import Client
from mcproxy.call.identity import Principal
from mcproxy.features.approvals.feature import CallApprovals
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import Params, raw
from tests.depth import examples
from tests.fakes.embeddings import fake_embeddings
from tests.fakes.upstream import FakeClient, complete
from tests.gateway.test_noninterference import (
    DESCRIPTIONS,
    EVERYTHING,
    OPEN,
    TOOLS,
    UPSTREAMS,
    Further,
    Model,
    Witness,
    check_allowed,
    policies,
    principals,
    standing,
)
from tests.timeouts import GUARD


async def soon(seconds: float) -> None:
    await anyio.sleep(0.001)


WHOLE = {"upstreams": ["*"], "tools": None, "resources": None, "prompts": None, "roles": []}
LIMIT = 4096
OVERRIDES = {
    "t0": {"arguments": {"k": {"rename": "q", "description": "A rare page."}}},
    "t1": {"arguments": {"k": {"value": 1}}},
    "t2": {"arguments": {"k": {"hide": True, "default": 2}}},
}
CONFIGURED = Further({"tools": {"overrides": OVERRIDES}, "results": {"max_bytes": LIMIT}}, sleep=soon)
KEPT = re.compile(r"mcproxy-result:[\w.-]+")
APPROVED_TOOLS: list[dict[str, object]] = [
    {"upstreams": ["*"], "tools": [name], "approve": approver} for name in TOOLS for approver in ("caller", "operator")
]
WORDS = sorted({word.strip(".").lower() for text in DESCRIPTIONS.values() for word in text.split()})


class ApprovedWitness(Witness):
    """A witness whose calls are approved, or not, by itself and by an operator; it reads the results that are kept."""

    capabilities: ClassVar[Params] = {"elicitation": raw({})}

    def __init__(self, *given: Any, approve: bool) -> None:
        super().__init__(*given)
        self.approve = approve
        self.answer = {"action": "accept", "content": {"approve": True}} if approve else {"action": "decline"}

    def client(self) -> Client:
        return FakeClient(answer=self.answer)

    async def call(self, method: str, **params: object) -> Outcome:
        outcome = await self._decided(method, **params)
        while isinstance(outcome, InputRequired):
            answers = dict.fromkeys(outcome.requests, self.answer)
            outcome = await self._decided(method, **params, requestState=outcome.state, inputResponses=answers)
        return outcome

    async def _decided(self, method: str, **params: object) -> Outcome:
        """The outcome of a call that an operator decides as soon as it waits."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._decide)
            outcome = await super().call(method, **params)
            tasks.cancel_scope.cancel()
        return outcome

    async def _decide(self) -> None:
        approvals = self.gateway.gateway.feature(CallApprovals)
        while True:
            for waiting in approvals.waiting():
                approvals.decide(waiting.id, Principal("olga"), approve=self.approve)
            await anyio.lowlevel.checkpoint()

    async def everything(self) -> list[object]:
        seen = await super().everything()
        return [plainly(each) for each in [*seen, *[await self.call("resources/read", uri=uri) for uri in kept(seen)]]]


def kept(seen: list[object]) -> Iterator[str]:
    """The URIs of results that are shown in part, in the order in which they were seen."""
    for found in KEPT.finditer(bytes(raw(seen)).decode()):
        yield found[0]


def plainly(seen: object) -> str:
    """Without what is drawn by lot."""
    return KEPT.sub("mcproxy-result:kept", bytes(raw(seen)).decode())


@hypothesis_settings(max_examples=examples(40))
@given(
    policies,
    st.lists(st.sampled_from(APPROVED_TOOLS), max_size=3),
    principals,
    st.sampled_from([LATEST, LATEST_HANDSHAKE]),
    st.booleans(),
)
@example({**OPEN, "default": "deny", "roles": {}}, APPROVED_TOOLS[:3], Principal("bob"), LATEST, True)
@example({**OPEN, "default": "deny", "roles": {}}, APPROVED_TOOLS[1:], Principal("bob"), LATEST_HANDSHAKE, True)
def test_r38_with_overrides_limits_and_approvals_what_is_denied_makes_no_difference(
    policy: dict[str, Any], approved: list[dict[str, object]], principal: Principal, version: str, approve: bool
) -> None:
    everyone = policy["roles"].get("everyone", {})
    roles = {**policy["roles"], "everyone": {**everyone, "allow": [*approved, *everyone.get("allow", [])]}}
    asyncio.run(compared({**policy, "roles": roles}, principal, version, approve=approve))


async def compared(policy: dict[str, Any], principal: Principal, version: str, *, approve: bool) -> None:
    model = Model(policy, principal)
    async with (
        standing(policy, WHOLE, None, CONFIGURED) as whole,
        standing(policy, WHOLE, model, CONFIGURED) as reduced,
    ):
        for gateway in (whole, reduced):
            for name in UPSTREAMS:
                gateway[name].answers["tools/call"] = lambda call: complete(
                    content=[{"type": "text", "text": "a line\n" * LIMIT}]
                )
        witnesses = [
            ApprovedWitness(gateway, principal, "/found", version, approve=approve) for gateway in (whole, reduced)
        ]
        before = {name: len(whole[name].calls) for name in UPSTREAMS}
        seen, expected = [await witness.everything() for witness in witnesses]
        assert seen == expected
        for name in UPSTREAMS:
            for call in whole[name].calls[before[name] :]:
                check_allowed(model, name, call)


async def by_words(body: dict[str, Any]) -> web.StreamResponse:
    """Vectors of how often each word comes, so that tools are more and less alike."""
    vectors = [[0.1, *(float(text.lower().count(word)) for word in WORDS)] for text in body["input"]]
    data = [{"index": number, "embedding": vector} for number, vector in enumerate(vectors)]
    return web.json_response({"object": "list", "model": body["model"], "data": data})


async def searched_by_meaning(witness: Witness) -> None:
    """Searches until the tools that the witness sees have their vectors."""
    registry = witness.gateway.metrics.registry

    def ranked() -> float:
        return registry.get_sample_value("mcproxy_search_rankings_total", {"by": "both"}) or 0

    with anyio.fail_after(GUARD):
        before = ranked()
        while ranked() == before:
            await witness.call("tools/call", name="find_tools", arguments={"query": "page"})
            await anyio.sleep(0.001)


@hypothesis_settings(max_examples=examples(20))
@given(policies, principals)
@example({**OPEN, "roles": {"everyone": {"deny": [{"upstreams": ["*"], "tools": ["t1"]}]}}}, Principal("bob"))
def test_r38_what_is_denied_makes_no_difference_to_what_is_found_by_meaning(
    policy: dict[str, Any], principal: Principal
) -> None:
    asyncio.run(compared_by_meaning(policy, principal))


def finds_any(model: Model) -> bool:
    return any(model.allows(upstream, "tools", tool) for upstream in UPSTREAMS for tool in TOOLS)


async def compared_by_meaning(policy: dict[str, Any], principal: Principal) -> None:
    model = Model(policy, principal)
    async with fake_embeddings(by_words) as service:
        more = Further(proxy={"embeddings": service.settings()}, sleep=soon)
        async with standing(policy, WHOLE, None, more) as whole, standing(policy, WHOLE, model, more) as reduced:
            if finds_any(Model(policy, EVERYTHING)):
                await searched_by_meaning(Witness(whole, EVERYTHING, "/found", LATEST))
            witnesses = [Witness(gateway, principal, "/found", LATEST) for gateway in (whole, reduced)]
            if finds_any(model):
                for witness in witnesses:
                    await searched_by_meaning(witness)
            seen, expected = [await witness.searched() for witness in witnesses]
            assert seen == expected
