"""What is denied to somebody makes no difference to it (requirement R38): against a model that knows nothing of views.

Two gateways have the same policy. Behind one are all entries; behind the other, nothing that the model says is denied
to one caller. Whatever that caller asks of them, everywhere, it is answered alike; and nothing denied reaches an
upstream. Others may read it before, so that it is cached, and it may change, so that somebody is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import anyio
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import Change, Client, Notice, ResourceUpdated
from mcproxy.call.identity import Caller, Principal
from mcproxy.catalog.instructions import INSTRUCTIONS_URI
from mcproxy.concurrency.clock import Sleep
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, Params, raw
from mcproxy.protocol.methods import LOG_MESSAGE, SKILLS, Kind, row_of
from tests.depth import examples
from tests.fakes.upstream import (
    EVERYTHING as CAPABILITIES,
)
from tests.fakes.upstream import FakeListener, FakeUpstream, House, complete, decoded, failed, house, quiet, tool
from tests.timeouts import GUARD

UPSTREAMS = ["a", "b"]
ENDPOINTS = ["", "a", "b", "/part", "/found"]
SCHEMA = {"type": "object", "properties": {"k": {"type": "integer"}}}
HINTS = [{}, {"readOnlyHint": True}, {"destructiveHint": False}]
TOOLS = {f"t{number}": hints for number, hints in enumerate(HINTS)}
DESCRIPTIONS = {"t0": "Reads the common page.", "t1": "Reads a rare page of the book.", "t2": "Writes a common page."}
QUERIES = ["common page", "rare book", "reads writes", "a", "b t0", "t1 t2"]
"""Words that tools share: how rare each is, and so the order of what is found, is for each caller to see."""
CALLERS = ["call_read", "call_write", "call_destructive"]
PROMPTS = ["p0", "p1"]
RESOURCES = ["x:/open/1", "x:/open/2", "x:/shut/1"]
TEMPLATES = ["x:/open/{name}", "x:/{+path}"]
UNLISTED = ["x:/open/9", "x:/shut/9"]
SKILL_FILES = {
    "x:/open/s/SKILL.md": ["x:/open/s/SKILL.md", "x:/open/1"],
    "x:/open/m/SKILL.md": ["x:/open/m/SKILL.md", "x:/shut/1"],
    "x:/shut/s/SKILL.md": ["x:/shut/s/SKILL.md"],
}
"""The files of each skill. One who may not read them all knows nothing of it."""
DIRECTORIES = {"x:/open/s": ["x:/open/s/SKILL.md", "x:/open/1", "x:/shut/1"], "x:/shut": ["x:/shut/1"]}
SPELLINGS = {
    "X:/shut/1": "x:/shut/1",
    "x:/open/../shut/1": "x:/shut/1",
    "x:/open/%2e%2e/shut/1": "x:/shut/1",
    "x:/%73hut/1": "x:/shut/1",
    "x:/open\\..\\shut\\1": "x:/shut/1",
    "x:/shut/../open/1": "x:/open/1",
}
"""Other ways to write a URI, and what it leads to."""
ARGUMENTS: list[dict[str, object]] = [{}, {"k": 1}, {"k": 2}]
OPEN: dict[str, Any] = {"default": "allow", "principals": {}}
EVERYTHING = Principal("root", roles=frozenset({"root"}))


def globs(names: list[str]) -> st.SearchStrategy[list[str] | None]:
    return st.none() | st.lists(st.sampled_from(names), max_size=2, unique=True)


selections = {
    "upstreams": st.sampled_from([["*"], ["a"], ["b"]]),
    "tools": globs(["*", "t0", "t1", "t[12]"]),
    "resources": globs(["*", "x:/open/*", "x:/shut/*", "x:/open/1"]),
    "prompts": globs(["*", "p0"]),
}
plain_rules = st.fixed_dictionaries(selections)
conditional_rules = st.fixed_dictionaries(
    {"upstreams": selections["upstreams"], "tools": selections["tools"]},
    optional={
        "read_only": st.booleans(),
        "destructive": st.booleans(),
        "arguments": st.just({"k": {"equals": 1}}),
    },
)
rules = st.lists(plain_rules | conditional_rules, max_size=2)
roles = st.fixed_dictionaries({}, optional={"allow": rules, "deny": rules})
policies = st.fixed_dictionaries(
    {
        "default": st.sampled_from(["allow", "deny"]),
        "roles": st.fixed_dictionaries({"everyone": roles, "r": roles, "s": roles}),
        "principals": st.just({"ann": ["s"]}),
    }
)
principals = st.builds(Principal, st.sampled_from(["ann", "bob"]), st.frozensets(st.sampled_from(["r", "unknown"])))
parts = st.fixed_dictionaries({**selections, "roles": st.sampled_from([[], ["r"], ["s"]])})


@dataclass(frozen=True)
class Further:
    """What is configured beside the policy and the endpoints."""

    upstream: Mapping[str, object] = field(default_factory=dict)
    """Settings of each upstream."""
    proxy: Mapping[str, object] = field(default_factory=dict)
    sleep: Sleep | None = None


NOTHING_MORE = Further()


@dataclass(frozen=True)
class Model:
    """The rules, read one by one."""

    policy: dict[str, Any]
    principal: Principal

    @property
    def roles(self) -> set[str]:
        assigned = self.policy["principals"].get(self.principal.name, [])
        return {role for role in ("everyone", *self.principal.roles, *assigned) if role in self.policy["roles"]}

    def rules(self, effect: str, upstream: str) -> list[dict[str, Any]]:
        held = [rule for role in self.roles for rule in self.policy["roles"][role].get(effect, [])]
        return [rule for rule in held if any(fnmatchcase(upstream, glob) for glob in rule["upstreams"])]

    def allows(self, upstream: str, kind: str, name: str, arguments: dict[str, object] | None = None) -> bool:
        """`arguments` None asks whether any would do."""

        def speaks(rule: dict[str, Any], unknown: bool) -> bool:
            if not matches(rule, kind, name):
                return False
            return unknown if arguments is None and "arguments" in rule else meets(rule, arguments or {})

        if any(speaks(rule, unknown=False) for rule in self.rules("deny", upstream)):
            return False
        allowed = any(speaks(rule, unknown=True) for rule in self.rules("allow", upstream))
        return allowed or self.policy["default"] == "allow"

    def reaches(self, upstream: str) -> bool:
        """Whether anything at all may be allowed of an upstream."""
        return any(self._reaches(upstream, kind) for kind in ("tools", "resources", "prompts"))

    def _reaches(self, upstream: str, kind: str) -> bool:
        if any("*" in globs_of(rule, kind) and not conditional(rule) for rule in self.rules("deny", upstream)):
            return False
        allowed = any(globs_of(rule, kind) for rule in self.rules("allow", upstream))
        return allowed or self.policy["default"] == "allow"


def conditional(rule: dict[str, Any]) -> bool:
    return bool(rule.keys() & {"read_only", "destructive", "arguments", "approve"})


def globs_of(rule: dict[str, Any], kind: str) -> list[str]:
    if conditional(rule) and kind != "tools":
        return []
    if all(rule.get(each) is None for each in ("tools", "resources", "prompts")):
        return ["*"]
    return rule.get(kind) or []


def matches(rule: dict[str, Any], kind: str, name: str) -> bool:
    if not any(fnmatchcase(name, glob) for glob in globs_of(rule, kind)):
        return False
    if kind != "tools":
        return True
    hints = TOOLS.get(name, {})
    read_only = hints.get("readOnlyHint", False)
    destructive = not read_only and hints.get("destructiveHint", True)
    return bool(rule.get("read_only", read_only) is read_only and rule.get("destructive", destructive) is destructive)


def meets(rule: dict[str, Any], arguments: dict[str, object]) -> bool:
    return "arguments" not in rule or arguments.get("k") == 1


def upstream(name: str, model: Model | None) -> FakeUpstream:
    """One that has all entries; or, with a model, those alone that it allows."""

    def has(kind: str, entry: str) -> bool:
        return model is None or model.allows(name, kind, entry)

    def skill(uri: str) -> dict[str, object]:
        return {"uri": uri, "frontmatter": {}, "resources": [{"uri": file} for file in SKILL_FILES[uri]]}

    def described(call: Call) -> Outcome:
        uri = str(decoded(call.params)["uri"])
        return complete(skill=skill(uri)) if uri in skills else failed(f"{name} has no {uri}", INVALID_PARAMS)

    def children(call: Call) -> Outcome:
        listed = DIRECTORIES.get(str(decoded(call.params)["uri"]), [])
        return complete(resources=[{"uri": uri} for uri in listed if has("resources", uri)])

    skills = [uri for uri, files in SKILL_FILES.items() if all(has("resources", file) for file in files)]
    made = FakeUpstream(name, **CAPABILITIES, extensions={SKILLS: {"directoryRead": True}})
    if model is None or model.reaches(name):
        made.identity = replace(made.identity, instructions=f"How to use {name}. " * 80)
    made.lists[Kind.TOOLS] = [
        tool(t, description=DESCRIPTIONS[t], annotations=hints, inputSchema=SCHEMA)
        for t, hints in TOOLS.items()
        if has("tools", t)
    ]
    made.lists[Kind.PROMPTS] = [{"name": p} for p in PROMPTS if has("prompts", p)]
    made.lists[Kind.RESOURCES] = [{"uri": uri, "name": "r"} for uri in RESOURCES if has("resources", uri)]
    made.lists[Kind.TEMPLATES] = [{"uriTemplate": t, "name": "t"} for t in TEMPLATES if has("resources", t)]
    made.lists[Kind.SKILLS] = [skill(uri) for uri in skills]
    made.answers["skills/get"] = described
    made.answers["resources/directory/read"] = children
    for method in ("tools/call", "prompts/get", "completion/complete", "resources/subscribe", "resources/unsubscribe"):
        made.answers[method] = lambda call: complete(answered=call.method)
    made.answers["resources/read"] = lambda call: complete(
        contents=[{"uri": decoded(call.params)["uri"], "text": name}], ttlMs=100_000, cacheScope="public"
    )
    made.answers["logging/setLevel"] = lambda call: complete()
    return made


@asynccontextmanager
async def standing(
    policy: dict[str, Any], part: dict[str, Any], model: Model | None, more: Further = NOTHING_MORE
) -> AsyncIterator[House]:
    root: dict[str, Any] = {"root": {"allow": [{}]}}
    access = {"policy": {**policy, "roles": {**policy["roles"], **root}}}
    made = [upstream(name, model) for name in UPSTREAMS]
    endpoints = {"part": part, "found": {**part, "discovery": "search", "pinned": ["*t0"]}}
    options = dict.fromkeys(UPSTREAMS, more.upstream)
    given: dict[str, Any] = {"naming": {"page_size": 2}, **more.proxy}
    async with house(*made, options=options, access=access, endpoints=endpoints, sleep=more.sleep, **given) as gateway:
        await gateway.ready()
        yield gateway


def plain(outcome: Outcome) -> object:
    if isinstance(outcome, Failed):
        return outcome.error
    return decoded(outcome)


class Witness:
    """Asks a gateway for everything that there might be, as one caller, and keeps what it is answered."""

    capabilities: ClassVar[Params] = {}

    def __init__(self, gateway: House, principal: Principal, endpoint: str, version: str) -> None:
        self.gateway = gateway
        self.caller = Caller(principal, version, self.capabilities, endpoint=endpoint)
        self.listener = FakeListener(structs.replace(self.caller, log_level="debug"))
        gateway.gateway.join(self.listener)

    async def call(self, method: str, **params: object) -> Outcome:
        given = {key: raw(value) for key, value in params.items()}
        with anyio.fail_after(GUARD):
            return await self.gateway.gateway.handler(
                Call(row_of(method), given, self.caller, self.client(), self.listener)
            )

    def client(self) -> Client:
        return _Silent()

    async def everything(self) -> list[object]:
        seen: list[object] = [plain(await self.call("server/discover"))]
        for kind in Kind:
            seen += await self.pages(kind)
        for name, arguments in ((n, a) for n in names([*TOOLS, "nil"]) for a in ARGUMENTS):
            seen.append(plain(await self.call("tools/call", name=name, arguments=arguments)))
        seen += await self.searched()
        for name in names([*PROMPTS, "nil"]):
            seen.append(plain(await self.call("prompts/get", name=name)))
            seen.append(plain(await self.call("completion/complete", ref={"type": "ref/prompt", "name": name})))
        for uri in [INSTRUCTIONS_URI, *uris([*RESOURCES, *UNLISTED, *SPELLINGS, *TEMPLATES])]:
            seen.append(plain(await self.call("resources/read", uri=uri)))
            seen.append(plain(await self.call("resources/subscribe", uri=uri)))
            seen.append(plain(await self.call("completion/complete", ref={"type": "ref/resource", "uri": uri})))
        for uri in uris([*SKILL_FILES, "x:/open/nil/SKILL.md"]):
            seen.append(plain(await self.call("skills/get", uri=uri)))
        for uri in uris([*DIRECTORIES]):
            seen.append(plain(await self.call("resources/directory/read", uri=uri)))
        seen.append([self.gateway.gateway.exists(endpoint, self.caller.principal) for endpoint in ENDPOINTS])
        return seen

    async def searched(self) -> list[object]:
        """All that the gateway's own tools tell, where they are."""
        calls = [self.call("tools/call", name="find_tools", arguments={"query": query}) for query in QUERIES]
        seen: list[object] = [plain(await call) for call in calls]
        seen.append(plain(await self.call("tools/call", name="find_tools", arguments={"query": "page", "limit": 1})))
        everything = {"names": names([*TOOLS, "nil"])}
        seen.append(plain(await self.call("tools/call", name="describe_tools", arguments=everything)))
        for name in names([*TOOLS, "nil"]):
            seen.append(plain(await self.call("tools/call", name="describe_tools", arguments={"names": [name]})))
            for caller, arguments in ((caller, a) for caller in CALLERS for a in ARGUMENTS):
                given = {"name": name, "arguments": arguments}
                seen.append(plain(await self.call("tools/call", name=caller, arguments=given)))
        return seen

    async def pages(self, kind: Kind) -> list[object]:
        seen: list[object] = []
        params: dict[str, object] = {}
        while True:
            outcome = await self.call(kind.list_method, **params)
            if isinstance(outcome, Failed):
                return [*seen, outcome.error]
            page = decoded(outcome)
            cursor = page.pop("nextCursor", None)
            seen.append(page)
            if cursor is None:
                return seen
            params = {"cursor": cursor}

    def told(self) -> list[Change]:
        return self.listener.changes


class _Silent:
    def notify(self, method: str, params: object) -> None:
        raise AssertionError("nothing is told during these calls")

    async def ask(self, request: object) -> Any:
        raise AssertionError("nothing is asked during these calls")


def names(own: list[str]) -> list[str]:
    return [*own, *(f"{upstream}__{name}" for upstream in UPSTREAMS for name in own)]


def uris(own: list[str]) -> list[str]:
    return [*own, *(f"{upstream}+{uri}" for upstream in UPSTREAMS for uri in own)]


def stir(gateway: House) -> None:
    """Has every upstream say that everything changed."""
    for name in UPSTREAMS:
        for uri in [*RESOURCES, *UNLISTED, *SPELLINGS]:
            gateway[name].announce(ResourceUpdated(uri))
        gateway[name].announce(Notice(LOG_MESSAGE, {"data": raw(name)}, level="error"))


async def read_all(gateway: House) -> None:
    for uri in uris([*RESOURCES, *UNLISTED]):
        await gateway.call("resources/read", principal=EVERYTHING, uri=uri)


async def compared(
    policy: dict[str, Any], part: dict[str, Any], principal: Principal, endpoint: str, version: str, stale: bool
) -> None:
    model = Model(policy, principal)
    async with standing(policy, part, None) as whole, standing(policy, part, model) as reduced:
        if stale:
            await read_all(whole)
        witnesses = [Witness(gateway, principal, endpoint, version) for gateway in (whole, reduced)]
        before = {name: len(whole[name].calls) for name in UPSTREAMS}
        seen, expected = [await witness.everything() for witness in witnesses]
        assert seen == expected
        for name in UPSTREAMS:
            for call in whole[name].calls[before[name] :]:
                check_allowed(model, name, call)
        for gateway in (whole, reduced):
            stir(gateway)
        await quiet()
        told, expected_told = [witness.told() for witness in witnesses]
        assert told == expected_told
        for change in told:
            check_told(model, change)
        # What is denied comes and goes without a word.
        witnesses[0].told().clear()
        for name in UPSTREAMS:
            for kind, member in ((Kind.TOOLS, "tools"), (Kind.RESOURCES, "resources"), (Kind.PROMPTS, "prompts")):
                kept = [entry for entry in whole[name].lists[kind] if model.allows(name, member, key_of(kind, entry))]
                whole[name].list_changed(kind, kept)
            allowed = [
                uri
                for uri, files in SKILL_FILES.items()
                if all(model.allows(name, "resources", file) for file in files)
            ]
            entries = whole[name].lists[Kind.SKILLS]
            whole[name].list_changed(Kind.SKILLS, [one for one in entries if key_of(Kind.SKILLS, one) in allowed])
        await quiet()
        assert witnesses[0].told() == []


def key_of(kind: Kind, entry: object) -> str:
    assert isinstance(entry, dict)
    return str(entry[kind.key])


def check_allowed(model: Model, upstream: str, call: Call) -> None:
    """Nothing denied is asked of an upstream, however it was spelt."""
    params = decoded(call.params)
    match call.method:
        case "tools/call":
            given = params.get("arguments")
            assert isinstance(given, dict)
            assert model.allows(upstream, "tools", str(params["name"]), given)
        case "prompts/get":
            assert model.allows(upstream, "prompts", str(params["name"]))
        case "resources/read" | "resources/subscribe" | "skills/get" | "resources/directory/read":
            uri = str(params["uri"])
            assert model.allows(upstream, "resources", SPELLINGS.get(uri, uri))
        case _:
            assert model.reaches(upstream)


def check_told(model: Model, change: Change) -> None:
    if isinstance(change, ResourceUpdated):
        prefix, plus, own = change.uri.partition("+")
        spelt = own if plus else change.uri
        among = [prefix] if plus else UPSTREAMS
        assert any(model.allows(name, "resources", SPELLINGS.get(spelt, spelt)) for name in among)


@hypothesis_settings(max_examples=examples(40))
@given(
    policies,
    parts,
    principals,
    st.sampled_from(ENDPOINTS),
    st.sampled_from([LATEST, LATEST_HANDSHAKE]),
    st.booleans(),
)
def test_r38_what_is_denied_is_as_if_it_did_not_exist(
    policy: dict[str, Any], part: dict[str, Any], principal: Principal, endpoint: str, version: str, stale: bool
) -> None:
    asyncio.run(compared(policy, part, principal, endpoint, version, stale))


@hypothesis_settings(max_examples=examples(40))
@given(policies, principals, st.sampled_from([LATEST, LATEST_HANDSHAKE]))
@example({**OPEN, "roles": {"everyone": {"deny": [{"upstreams": ["*"], "tools": ["t1"]}]}}}, Principal("bob"), LATEST)
@example({**OPEN, "roles": {"everyone": {"deny": [{"upstreams": ["b"], "tools": ["*"]}]}}}, Principal("bob"), LATEST)
def test_r38_what_is_denied_is_not_found_and_makes_no_difference_to_what_is(
    policy: dict[str, Any], principal: Principal, version: str
) -> None:
    """At the endpoint with search, which shows everything: what is found, in which order, described and called."""
    whole = {"upstreams": ["*"], "tools": None, "resources": None, "prompts": None, "roles": []}
    asyncio.run(compared(policy, whole, principal, "/found", version, stale=False))


@hypothesis_settings(max_examples=examples(40))
@given(policies, principals)
def test_r38_what_is_allowed_is_there(policy: dict[str, Any], principal: Principal) -> None:
    """The model is no stricter, or looser, than what callers get."""
    asyncio.run(served(policy, principal))


async def served(policy: dict[str, Any], principal: Principal) -> None:
    model = Model(policy, principal)
    async with standing(policy, {"tools": []}, None) as gateway:
        witness = Witness(gateway, principal, "", LATEST)
        for name in UPSTREAMS:
            for tool in TOOLS:
                for arguments in ARGUMENTS:
                    outcome = await witness.call("tools/call", name=f"{name}__{tool}", arguments=arguments)
                    assert isinstance(outcome, Complete) is model.allows(name, "tools", tool, arguments)
            for prompt in PROMPTS:
                outcome = await witness.call("prompts/get", name=f"{name}__{prompt}")
                assert isinstance(outcome, Complete) is model.allows(name, "prompts", prompt)
            for uri in [*RESOURCES, *UNLISTED]:
                outcome = await witness.call("resources/read", uri=f"{name}+{uri}")
                assert isinstance(outcome, Complete) is model.allows(name, "resources", uri)
            for uri, files in SKILL_FILES.items():
                outcome = await witness.call("skills/get", uri=f"{name}+{uri}")
                allowed = all(model.allows(name, "resources", file) for file in files)
                assert isinstance(outcome, Complete) is allowed
        listed = await gateway.listed(Kind.TOOLS, principal=principal) if any(map(model.reaches, UPSTREAMS)) else []
        shown = [f"{name}__{tool}" for name in UPSTREAMS for tool in TOOLS if model.allows(name, "tools", tool)]
        assert listed == shown[:2]
