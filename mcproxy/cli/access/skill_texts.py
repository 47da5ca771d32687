"""Reads the text files of skills, for a person who is about to approve them (`mcproxy lock`, `check --connect`).

Asks each upstream over the link that all share. Judges no text (`access.scanning`), and keeps none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import anyio
import msgspec
from msgspec import Raw

from mcproxy.access.scanning import SkillText, SkillTexts
from mcproxy.call.calls import Complete
from mcproxy.call.errors import McpError
from mcproxy.call.upstreams import Upstream
from mcproxy.catalog.skills import InvalidSkill, files_of
from mcproxy.gateway.listings.internal_calls import internal_call
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.protocol.json.bounds import Bounded
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings.access.pins import Approved

MAX_FILES: Final = 512
"""Files of one upstream that are read."""
_ALGORITHM: Final = "sha256:"


class _DigestedFile(msgspec.Struct):
    uri: str
    digest: object = None
    """A text, unless it is malformed: it says nothing of the file then."""


class _Skill(msgspec.Struct):
    resources: list[_DigestedFile] | str


class _Content(msgspec.Struct):
    text: str | None = None


_skills = Bounded(_Skill)
_contents = Bounded(list[_Content])


async def skill_texts(
    upstreams: Mapping[str, Upstream], offered: Mapping[str, Approved | None], seconds: float
) -> SkillTexts:
    """The texts of all skills that are offered, at most MAX_FILES of each upstream, and word of what is left out.

    `seconds` bound each read.
    """
    found: dict[tuple[str, str], tuple[SkillText, ...]] = {}
    for name, approved in offered.items():
        if approved is None or approved.manifest is None or name not in upstreams:
            continue
        left = MAX_FILES
        for entry in approved.manifest.lists.get(Kind.SKILLS, ()):
            listed = _files(entry)
            files = listed[:left]
            left -= len(files)
            texts = [await _read(upstreams[name], file, seconds) for file in files]
            if rest := listed[len(files) :]:
                why = f"{len(rest)} files from this one on were not looked at: of one server {MAX_FILES} are"
                texts.append(SkillText(rest[0].uri, None, why))
            if listed:
                found[name, listed[0].uri] = tuple(texts)
    return found


def _files(entry: Raw) -> list[_DigestedFile]:
    """The files of a skill, `SKILL.md` first, as far as its entry lists them; none of an entry that is invalid."""
    try:
        uris, listed = files_of(entry), _skills.decode(entry).resources
    except (InvalidSkill, msgspec.MsgspecError):
        return []
    digests = {} if isinstance(listed, str) else {file.uri: file for file in listed}
    return [digests.get(uri) or _DigestedFile(uri) for uri in uris]


async def _read(upstream: Upstream, file: _DigestedFile, seconds: float) -> SkillText:
    call = internal_call(LinkKey(upstream.name, None), "resources/read", {"uri": raw(file.uri)})
    try:
        with anyio.fail_after(seconds):
            outcome = await upstream(call)
    except (McpError, TimeoutError) as error:
        return SkillText(file.uri, None, str(error) or "no answer in time")
    if not isinstance(outcome, Complete):
        return SkillText(file.uri, None, "the server answered with no content")
    try:
        contents = _contents.decode(outcome.result.get("contents", b"[]"))
    except msgspec.MsgspecError:
        return SkillText(file.uri, None, "the server answered with no content")
    texts = [content.text for content in contents if content.text is not None]
    text = "\n".join(texts)
    digest = file.digest if isinstance(file.digest, str) else ""
    is_other = (
        len(texts) == 1
        and digest.startswith(_ALGORITHM)
        and hashlib.sha256(text.encode(errors="replace")).hexdigest() != digest.removeprefix(_ALGORITHM).lower()
    )
    return SkillText(file.uri, text, "it is not what its digest in the list says" if is_other else None)
