"""Read what the skills extension lists (SEP-2640): which files a skill has, and which of them a caller may read.

A skill is shown whole or not at all: its list of files is complete by the extension's own rule, so a caller who may not
read one of them is not shown the skill. `rewriting` rewrites its URIs; hosts check its digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.catalog.rewriting import MAX_ITEMS
from mcproxy.catalog.uri_matching import readings
from mcproxy.protocol.json.bounds import TooMany, parse_array
from mcproxy.protocol.jsonrpc import InvalidMessage, Params, parse_object, parse_text, raw
from mcproxy.protocol.methods import DIRECTORY_READ

_URI: Final = "uri"
_FILES: Final = "resources"
_DYNAMIC: Final = "dynamic"
_TRUE: Final = Raw(b"true")

MayRead = Callable[[str], bool]
"""Whether a caller may read the resource with that URI."""


class InvalidSkill(Exception):
    """An entry whose files cannot be determined; the text is a phrase with the reason."""


class _SkillFile(msgspec.Struct):
    uri: str


_file = msgspec.json.Decoder(_SkillFile)


def files_of(skill: Raw) -> tuple[str, ...]:
    """The URIs of a skill's files, that of its `SKILL.md` first. Raises InvalidSkill.

    Skill entries, Resources: an entry whose `resources` is neither an array nor "dynamic" is invalid. The files of a
    dynamic skill are not known.
    """
    try:
        members = parse_object(skill)
        own, listed = parse_text(members.get(_URI, b"")), members.get(_FILES, Raw(b"null"))
        if own is None:
            raise InvalidSkill("it has no uri")
        if parse_text(listed) == _DYNAMIC:
            return (own,)
        found = [_file.decode(file) for file in parse_array(listed, MAX_ITEMS)]
    except TooMany as error:
        raise InvalidSkill(f"it has more than {MAX_ITEMS} files") from error
    except (InvalidMessage, msgspec.MsgspecError, RecursionError) as error:
        raise InvalidSkill('its resources are neither a list of files nor "dynamic"') from error
    return (own, *(file.uri for file in found if file.uri != own))


def withheld_files(refused: Iterable[Raw], approved: Iterable[Raw]) -> frozenset[str]:
    """The files of unapproved skills that no approved skill has too: each reading of a URI."""
    return frozenset(_readings(refused) - _readings(approved))


def _readings(skills: Iterable[Raw]) -> set[str]:
    return {reading for skill in skills for uri in files_of(skill) for reading in readings(uri)}


def is_readable(skill: Raw, may_read: MayRead) -> bool:
    """Whether a caller may read all files of a skill; False if these are unknown."""
    try:
        return all(map(may_read, files_of(skill)))
    except InvalidSkill:
        return False


def readable_children(result: Params, may_read: MayRead) -> Params:
    """A result of `resources/directory/read` without the entries that the caller may not read."""
    try:
        children = parse_array(result.get(_FILES, b""), MAX_ITEMS)
    except (msgspec.MsgspecError, RecursionError):
        return {**result, _FILES: raw([])}
    kept = [child for child in children if _is_readable_child(child, may_read)]
    return result if len(kept) == len(children) else {**result, _FILES: raw(kept)}


def _is_readable_child(child: Raw, may_read: MayRead) -> bool:
    try:
        uri = parse_text(parse_object(child).get(_URI, b""))
    except InvalidMessage:
        return False
    return uri is not None and may_read(uri)


def joined_settings(settings: Sequence[Params]) -> Params:
    """The extension's settings for several servers with skills: directories can be read if all servers allow it."""
    first = settings[0]
    if first.get(DIRECTORY_READ) == _TRUE and not all(each.get(DIRECTORY_READ) == _TRUE for each in settings):
        return {key: value for key, value in first.items() if key != DIRECTORY_READ}
    return first
