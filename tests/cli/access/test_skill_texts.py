"""The twin of `mcproxy.cli.access.skill_texts`."""

from __future__ import annotations

import hashlib

import pytest

from mcproxy.access.scanning import SkillText
from mcproxy.call.calls import Call, Outcome
from mcproxy.call.errors import McpError
from mcproxy.cli.access.skill_texts import MAX_FILES, skill_texts
from mcproxy.protocol.eras import LATEST, Era
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings.access.pins import Approved, Manifest
from tests.fakes.upstream import FakeUpstream, complete, decoded, failed

pytestmark = pytest.mark.anyio

ROOT = "skill://acme/refunds"
MANIFEST, FORM = f"{ROOT}/SKILL.md", f"{ROOT}/FORM.md"
TEXTS = {MANIFEST: "# Refunds", FORM: "Über alles"}


def listed(uri: str) -> dict[str, object]:
    return {"uri": uri, "digest": f"sha256:{hashlib.sha256(TEXTS[uri].encode()).hexdigest()}", "size": 1}


def offering(*skills: dict[str, object]) -> dict[str, Approved | None]:
    lists = {Kind.SKILLS: tuple(map(raw, skills))}
    return {"up": Approved(manifest=Manifest(Era.STATELESS, LATEST, lists=lists)), "away": None}


def skill(resources: object) -> dict[str, object]:
    return {"uri": MANIFEST, "frontmatter": {"name": "refunds"}, "resources": resources}


def serving(**changed: str) -> FakeUpstream:
    up = FakeUpstream("up")

    def read(call: Call) -> Outcome:
        uri = str(decoded(call.params)["uri"])
        return complete(contents=[{"uri": uri, "text": changed.get(uri.rpartition("/")[2][:-3], TEXTS[uri])}])

    up.answers["resources/read"] = read
    return up


async def texts_of(up: FakeUpstream, resources: object) -> list[SkillText]:
    return list((await skill_texts({"up": up}, offering(skill(resources)), 60))["up", MANIFEST])


async def test_all_files_of_a_skill_are_read_once() -> None:
    up = serving()
    read = [SkillText(MANIFEST, TEXTS[MANIFEST]), SkillText(FORM, TEXTS[FORM])]
    assert await texts_of(up, [listed(FORM), listed(MANIFEST)]) == read
    assert up.count("resources/read") == 2


async def test_of_a_skill_that_lists_no_files_its_own_is_read() -> None:
    assert await texts_of(serving(), "dynamic") == [SkillText(MANIFEST, TEXTS[MANIFEST])]


async def test_a_file_that_is_not_what_its_digest_says_is_told_of() -> None:
    found = await texts_of(serving(FORM="evil"), [listed(MANIFEST), listed(FORM)])
    assert found[1] == SkillText(FORM, "evil", "it is not what its digest in the list says")


@pytest.mark.parametrize("digest", [5, None, ["sha256:"], {}])
async def test_a_file_with_a_malformed_digest_is_looked_at_all_the_same(digest: object) -> None:
    resources = [{"uri": FORM, "digest": digest}, listed(MANIFEST)]
    assert await texts_of(serving(FORM="evil"), resources) == [
        SkillText(MANIFEST, TEXTS[MANIFEST]),
        SkillText(FORM, "evil"),
    ]


@pytest.mark.parametrize("contents", ["x", [], [{"blob": "AA=="}]])
async def test_what_is_no_text_is_not_looked_at(contents: object) -> None:
    up = serving()
    up.answers["resources/read"] = lambda call: complete(contents=contents)
    (found,) = await texts_of(up, [listed(MANIFEST)])
    assert not found.text


async def test_a_file_that_cannot_be_read_is_told_of() -> None:
    up = serving()
    up.answers["resources/read"] = lambda call: failed("broken")
    assert [found.text for found in await texts_of(up, [listed(MANIFEST)])] == [None]

    def refuse(call: Call) -> Outcome:
        raise McpError(INTERNAL_ERROR, "away")

    up.answers["resources/read"] = refuse
    assert await texts_of(up, [listed(MANIFEST)]) == [SkillText(MANIFEST, None, "away")]


async def test_the_files_of_one_upstream_that_are_read_are_bounded_and_it_is_said_of_the_others() -> None:
    up = serving()
    up.answers["resources/read"] = lambda call: complete(contents=[{"text": "x"}])
    files = [{"uri": f"{ROOT}/{number}"} for number in range(MAX_FILES + 1)]
    *read, left = await texts_of(up, files)
    assert len(read) == up.count("resources/read") == MAX_FILES
    why = f"2 files from this one on were not looked at: of one server {MAX_FILES} are"
    assert left == SkillText(f"{ROOT}/{MAX_FILES - 1}", None, why)
