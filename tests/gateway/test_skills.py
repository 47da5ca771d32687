"""Skills (SEP-2640) through the gateway: listed and described like every other list, of all servers that have them."""

from __future__ import annotations

from functools import partial

import pytest

from mcproxy.access.pins import approved
from mcproxy.call.clients import ListChanged
from mcproxy.call.identity import Caller, Principal
from mcproxy.call.upstreams import PushChannel, ServerIdentity
from mcproxy.configuration.lock import parse_lock
from mcproxy.features.pins.feature import Pins
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, Era
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, raw
from mcproxy.protocol.methods import SKILLS, Kind
from mcproxy.settings.access.pins import PinSettings
from tests.fakes.upstream import FakeUpstream, complete, decoded, error, failed, house, quiet, resource

pytestmark = pytest.mark.anyio

ANYBODY = Principal("anybody")
ERAS = [LATEST, LATEST_HANDSHAKE]
REFUNDS = "skill://acme/refunds"
HIDDEN = "skill://acme/hidden"


def skill(root: str, *files: str, at: str = "") -> dict[str, object]:
    """A skill with these files beside its `SKILL.md`, its URIs as callers see them who know it `at` a server."""
    listed = [{"uri": f"{at}{root}/{name}", "digest": f"sha256:{name}", "size": 7} for name in ("SKILL.md", *files)]
    frontmatter = {"name": root.rpartition("/")[2], "description": f"See {root}", "allowed-tools": "Bash(git:*)"}
    return {"uri": f"{at}{root}/SKILL.md", "frontmatter": frontmatter, "resources": listed}


def serving(name: str, *listed: dict[str, object], **settings: object) -> FakeUpstream:
    """A server of skills that also serves one that it does not list."""
    made = FakeUpstream(name, resources={"listChanged": True}, extensions={SKILLS: settings})
    made.lists[Kind.SKILLS] = listed
    served = {str(entry["uri"]): entry for entry in (*listed, skill(HIDDEN))}

    made.answers["skills/get"] = lambda call: (
        complete(skill=served[uri], ttlMs=5, cacheScope="public")
        if (uri := str(decoded(call.params)["uri"])) in served
        else failed(f"No skill is served at {uri}", INVALID_PARAMS)
    )
    return made


@pytest.mark.parametrize("version", ERAS)
async def test_the_skills_of_all_servers_are_listed_each_as_it_is(version: str) -> None:
    async with house(serving("a", skill(REFUNDS, "a.md")), serving("b", skill(REFUNDS)), FakeUpstream("c")) as h:
        await h.ready()
        listed = decoded(await h.call("skills/list", version=version))
        assert listed["skills"] == [skill(REFUNDS, "a.md", at="a+"), skill(REFUNDS, at="b+")]
        assert h["c"].count("skills/list") == 0
        discovered = decoded(await h.call("server/discover", version=version))["capabilities"]
        assert isinstance(discovered, dict)
        assert discovered["extensions"] == {SKILLS: {}}


@pytest.mark.parametrize("version", ERAS)
async def test_a_skill_is_described_whether_it_is_listed_or_not(version: str) -> None:
    async with house(serving("a", skill(REFUNDS)), serving("b")) as h:
        await h.ready()
        for root in (REFUNDS, HIDDEN):
            described = decoded(await h.call("skills/get", version=version, uri=f"a+{root}/SKILL.md"))
            assert described == {"skill": skill(root, at="a+"), "ttlMs": 5, "cacheScope": "public"}
        assert [decoded(call.params) for call in h["a"].calls if call.method == "skills/get"] == [
            {"uri": f"{REFUNDS}/SKILL.md"},
            {"uri": f"{HIDDEN}/SKILL.md"},
        ]


async def test_at_its_own_endpoint_a_servers_skills_are_byte_for_byte_its_own() -> None:
    async with house(serving("a", skill(REFUNDS, "a.md")), serving("b")) as h:
        await h.ready()
        assert decoded(await h.call("skills/list", endpoint="a"))["skills"] == [skill(REFUNDS, "a.md")]
        found = decoded(await h.call("skills/get", endpoint="a", uri=f"{REFUNDS}/SKILL.md"))
        assert found["skill"] == skill(REFUNDS, "a.md")


async def test_a_skill_that_does_not_exist_is_refused_in_the_servers_words() -> None:
    async with house(serving("a")) as h:
        await h.ready()
        refused = error(await h.call("skills/get", uri="a+skill://none/SKILL.md"))
        assert (refused.code, refused.message) == (INVALID_PARAMS, "No skill is served at skill://none/SKILL.md")


@pytest.mark.parametrize("version", ERAS)
async def test_a_skill_of_no_server_is_invalid_in_either_era(version: str) -> None:
    async with house(serving("a")) as h:
        await h.ready()
        refused = error(await h.call("skills/get", version=version, uri="skill://none/SKILL.md"))
        assert (refused.code, refused.message) == (INVALID_PARAMS, "Resource not found: skill://none/SKILL.md")


@pytest.mark.parametrize("method", ["skills/list", "skills/get", "resources/directory/read"])
async def test_where_no_server_has_skills_there_are_none(method: str) -> None:
    async with house(FakeUpstream("a", resources={})) as h:
        await h.ready()
        assert error(await h.call(method, uri="a+skill://x/SKILL.md")).code == METHOD_NOT_FOUND
        capabilities = decoded(await h.call("server/discover"))["capabilities"]
        assert capabilities == {"resources": {"listChanged": True}}


async def test_a_directory_is_read_page_by_page_with_the_servers_own_cursors() -> None:
    up = serving("a", directoryRead=True)
    child = {"uri": f"{REFUNDS}/templates", "name": "templates", "mimeType": "inode/directory"}
    up.answers["resources/directory/read"] = lambda call: complete(resources=[child], nextCursor="more")
    async with house(up, serving("b", directoryRead=True)) as h:
        await h.ready()
        page = decoded(await h.call("resources/directory/read", uri=f"a+{REFUNDS}", cursor="first"))
        assert page == {"resources": [{**child, "uri": f"a+{REFUNDS}/templates"}], "nextCursor": "more"}
        assert decoded(up.calls[-1].params) == {"uri": REFUNDS, "cursor": "first"}


async def test_directories_are_not_read_where_one_of_the_servers_has_no_way_to() -> None:
    async with house(serving("a", directoryRead=True), serving("b")) as h:
        await h.ready()
        assert error(await h.call("resources/directory/read", uri=f"a+{REFUNDS}")).code == METHOD_NOT_FOUND
        assert h["a"].count("resources/directory/read") == 0


async def test_skills_are_fetched_anew_when_resources_change_and_clients_are_told_so() -> None:
    up = serving("a", skill(REFUNDS))
    async with house(up) as h:
        await h.ready()
        listener = h.listener()
        up.lists[Kind.SKILLS] = [skill(REFUNDS, "new.md")]
        for kind in (Kind.RESOURCES, Kind.TEMPLATES, Kind.SKILLS):
            up.announce(ListChanged(kind))
        await listener.hears(ListChanged(Kind.SKILLS))
        assert decoded(await h.call("skills/list"))["skills"] == [skill(REFUNDS, "new.md", at="a+")]


async def test_a_list_of_skills_whose_time_is_over_is_fetched_anew() -> None:
    """No server announces every change of its skills, not even one that announces those of its resources."""
    up = serving("a", skill(REFUNDS))
    up.answers["skills/list"] = lambda call: complete(skills=up.lists[Kind.SKILLS], ttlMs=2000, cacheScope="public")
    async with house(up) as h:
        await h.ready()
        up.lists[Kind.SKILLS] = []
        assert len(await h.listed(Kind.SKILLS)) == 1
        h.clock.now += 3
        assert await h.listed(Kind.SKILLS) == []


async def test_a_list_of_skills_without_a_time_is_fetched_anew_when_it_is_asked_for() -> None:
    """Servers of the handshake era give none, and a file may change without a word."""
    up = serving("a", skill(REFUNDS))
    async with house(up) as h:
        await h.ready()
        up.lists[Kind.SKILLS] = [skill(REFUNDS, "new.md")]
        h.clock.now += 2
        assert decoded(await h.call("skills/list"))["skills"] == [skill(REFUNDS, "new.md", at="a+")]


async def test_skills_are_fetched_anew_when_notifications_may_have_been_lost() -> None:
    up = serving("a", skill(REFUNDS))
    async with house(up) as h:
        await h.ready()
        fetched = up.count("skills/list")
        up.announce(PushChannel.LOST)
        up.announce(PushChannel.RESTORED)
        await up.called("skills/list", fetched + 1)


async def test_a_caller_who_may_not_read_one_file_is_not_told_of_the_skill() -> None:
    rules = {"allow": [{"resources": ["skill://acme/*"]}], "deny": [{"resources": [f"{REFUNDS}/secret.md"]}]}
    up = serving("a", skill(REFUNDS, "secret.md"), skill("skill://acme/open", "a.md"))
    async with house(up, access={"policy": {"roles": {"everyone": rules}}}) as h:
        await h.ready()
        assert await h.listed(Kind.SKILLS) == ["a+skill://acme/open/SKILL.md"]
        hidden, absent = f"a+{REFUNDS}/SKILL.md", "a+skill://acme/none/SKILL.md"
        for uri in (hidden, absent):
            refused = error(await h.call("skills/get", uri=uri))
            assert (refused.code, refused.message) == (INVALID_PARAMS, f"Resource not found: {uri}")
        found = decoded(await h.call("skills/get", uri="a+skill://acme/open/SKILL.md"))
        assert found["skill"] == skill("skill://acme/open", "a.md", at="a+")
        assert found["cacheScope"] == "private"


async def test_of_a_directory_a_caller_sees_what_it_may_read() -> None:
    up = serving("a", directoryRead=True)
    names = ["SKILL.md", "secret.md"]
    up.answers["resources/directory/read"] = lambda call: complete(
        resources=[{"uri": f"{REFUNDS}/{name}", "name": name} for name in names]
    )
    deny = {"deny": [{"resources": [f"{REFUNDS}/secret.md"]}]}
    async with house(up, access={"policy": {"default": "allow", "roles": {"everyone": deny}}}) as h:
        await h.ready()
        page = decoded(await h.call("resources/directory/read", uri=f"a+{REFUNDS}"))
        assert page["resources"] == [{"uri": f"a+{REFUNDS}/SKILL.md", "name": "SKILL.md"}]


def enforced(*skills: dict[str, object]) -> dict[str, object]:
    """Settings that hold skills of the server `a` as approved."""
    lock = {"a": approved(None, {Kind.SKILLS: {str(each["uri"]): raw(each) for each in skills}})}
    return {"pins": PinSettings.model_validate({"mode": "enforce"}).holding(lock)}


@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize("endpoint", ["", "a"])
async def test_r45_a_skill_of_which_a_file_changed_is_gone_until_it_is_as_it_was(version: str, endpoint: str) -> None:
    good, open_skill, at = skill(REFUNDS, "a.md"), skill("skill://acme/open"), "" if endpoint else "a+"
    up = serving("a", good, open_skill)
    async with house(up, access=enforced(good, open_skill)) as h:
        await h.ready()
        listener = h.listener(endpoint)
        evil = skill(REFUNDS, "b.md")
        up.lists[Kind.SKILLS] = [evil, open_skill]
        up.announce(ListChanged(Kind.SKILLS))
        await listener.hears(ListChanged(Kind.SKILLS))
        names = [f"{at}{REFUNDS}/SKILL.md", f"{at}skill://acme/open/SKILL.md"]
        assert await h.listed(Kind.SKILLS, endpoint=endpoint, version=version) == names[1:]
        assert [entry.why for entry in h.gateway.feature(Pins).unapproved()] == [
            f"it is not approved any more: file {REFUNDS}/a.md went, file {REFUNDS}/b.md came"
        ]
        labels = {"upstream": "a", "kind": "skills"}
        assert h.metrics.registry.get_sample_value("mcproxy_pins_refused", labels) == 1
        unknown = f"{at}skill://acme/none/SKILL.md"
        for uri in (names[0], unknown):
            refused = error(await h.call("skills/get", endpoint=endpoint, version=version, uri=uri))
            assert (refused.code, refused.message.endswith(uri)) == (INVALID_PARAMS, True)
        h.clock.now += 1
        up.lists[Kind.SKILLS] = [good, open_skill]
        up.announce(ListChanged(Kind.SKILLS))
        await listener.hears(ListChanged(Kind.SKILLS), 2)
        assert await h.listed(Kind.SKILLS, endpoint=endpoint, version=version) == names
        assert decoded(await h.call("skills/get", endpoint=endpoint, version=version, uri=names[0]))["skill"] == skill(
            REFUNDS, "a.md", at=at
        )


@pytest.mark.parametrize("version", ERAS)
async def test_r45_the_files_of_a_skill_that_is_not_approved_are_not_read_however_they_are_spelled(
    version: str,
) -> None:
    good, new = skill(REFUNDS, "shared.md"), skill(HIDDEN, "a b.md", "../refunds/shared.md")
    up = serving("a", good, new)
    files = [f"{REFUNDS}/SKILL.md", f"{REFUNDS}/shared.md", f"{HIDDEN}/SKILL.md", f"{HIDDEN}/none.md"]
    up.lists[Kind.RESOURCES] = [resource(uri) for uri in files]
    up.answers["resources/read"] = lambda call: complete(contents=[])
    async with house(up, access=enforced(good)) as h:
        await h.ready()
        listed = await h.listed(Kind.RESOURCES, version=version)
        assert listed == [f"a+{uri}" for uri in files if uri != f"{HIDDEN}/SKILL.md"]
        for uri in (*listed, "a+skill://other/SKILL.md"):
            assert "contents" in decoded(await h.call("resources/read", version=version, uri=uri))
        for name in ("SKILL.md", "./SKILL.md", "x/../SKILL.md", "SKILL%2Emd", "a%20b.md"):
            uri = f"a+{HIDDEN}/{name}"
            refused = error(await h.call("resources/read", version=version, uri=uri))
            assert refused.message == f"Resource not found: {uri}"
        hears = partial(h.gateway._catalogue.may_read, Caller(ANYBODY, version), "a")
        assert [uri for uri in files if not hears(uri)] == [f"{HIDDEN}/SKILL.md"]
        explained = h.gateway.explain(Caller(ANYBODY, version), Kind.RESOURCES, f"a+{HIDDEN}/SKILL.md", {})
        assert (explained.allowed, explained.steps[-1].why) == (False, "it is a file of a skill that is not approved")
        up.lists[Kind.SKILLS] = [good]
        listener = h.listener()
        up.announce(ListChanged(Kind.SKILLS))
        await listener.hears(ListChanged(Kind.RESOURCES))
        assert len(await h.listed(Kind.RESOURCES, version=version)) == len(files)
        assert "contents" in decoded(await h.call("resources/read", version=version, uri=f"a+{HIDDEN}/SKILL.md"))


async def test_the_files_of_skills_are_read_where_pins_only_warn() -> None:
    up = serving("a", skill(REFUNDS))
    up.answers["resources/read"] = lambda call: complete(contents=[])
    async with house(up, access={"pins": {"mode": "warn"}}) as h:
        await h.ready()
        assert "contents" in decoded(await h.call("resources/read", uri=f"a+{REFUNDS}/SKILL.md"))


async def test_r45_a_skill_is_not_described_otherwise_than_it_was_approved_nor_if_it_is_not_listed() -> None:
    up = serving("a", skill(REFUNDS))
    async with house(up, access=enforced(skill(REFUNDS))) as h:
        await h.ready()
        described = await h.call("skills/get", uri=f"a+{REFUNDS}/SKILL.md")
        assert decoded(described)["skill"] == skill(REFUNDS, at="a+")
        assert error(await h.call("skills/get", uri=f"a+{HIDDEN}/SKILL.md")).code == INVALID_PARAMS
        up.answers["skills/get"] = lambda call: complete(skill=skill(REFUNDS, "evil.md"))
        assert error(await h.call("skills/get", uri=f"a+{REFUNDS}/SKILL.md")).code == INVALID_PARAMS


async def test_r45_skills_of_a_lock_file_that_is_older_than_their_pins_are_hidden_and_told_of() -> None:
    lock = parse_lock('{"lockfile":1,"upstreams":{"a":{}}}', "mcproxy.lock")
    access = {"pins": PinSettings.model_validate({"mode": "enforce"}).holding(lock)}
    async with house(serving("a", skill(REFUNDS)), access=access) as h:
        await h.ready()
        assert await h.listed(Kind.SKILLS) == []
        assert ["`mcproxy lock` writes it anew" in entry.why for entry in h.gateway.feature(Pins).unapproved()] == [
            True
        ]


@pytest.mark.parametrize("mode", ["warn", "enforce"])
async def test_skills_are_offered_for_approval_like_tools(mode: str) -> None:
    async with house(serving("a", skill(REFUNDS)), access={"pins": {"mode": mode}}) as h:
        await h.ready()
        assert len(await h.listed(Kind.SKILLS)) == (mode == "warn")
        offered = h.gateway.feature(Pins).offered()["a"]
        assert offered is not None
        assert list(offered.definitions[Kind.SKILLS]) == [f"{REFUNDS}/SKILL.md"]


@pytest.mark.parametrize("era", Era)
async def test_skills_need_no_connection_of_the_clients_own(era: Era) -> None:
    up = serving("a", skill(REFUNDS))
    version = LATEST if era is Era.STATELESS else LATEST_HANDSHAKE
    up.identity = ServerIdentity(era, version, {"resources": raw({}), "extensions": raw({SKILLS: {}})})
    async with house(up) as h:
        await h.ready()
        await quiet()
        assert await h.listed(Kind.SKILLS) == [f"a+{REFUNDS}/SKILL.md"]
