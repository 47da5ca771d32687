"""Find signs of attacks on the model in definitions, for the person who approves them (`mcproxy lock`, `check`).

Hidden characters, instructions to the model, names that pass for another upstream's, and look-alikes. Each finding says
where and why. It helps a reader and is no filter: it hides nothing, and finds not everything.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import re2

from mcproxy.access.pins import NOUNS
from mcproxy.protocol.json.bounds import parse_value
from mcproxy.protocol.methods import Kind
from mcproxy.settings.access.pins import Approved

MAX_FINDINGS: Final = 20
"""Findings of one definition."""
MAX_TEXT: Final = 1_000_000
"""Characters of a text that are scanned; for a longer one a finding says that its end was not."""
_AROUND: Final = 30
"""Characters of context that a finding shows on each side."""

_HIDDEN: Final = (
    (0x00AD, 0x00AD, "a soft hyphen"),
    (0x034F, 0x034F, "an invisible character"),
    (0x115F, 0x1160, "an invisible letter"),
    (0x17B4, 0x17B5, "an invisible letter"),
    (0x180B, 0x180F, "an invisible character"),
    (0x200B, 0x200D, "a zero-width character"),
    (0x200E, 0x200F, "a mark of writing direction"),
    (0x202A, 0x202E, "a control of writing direction"),
    (0x2060, 0x2065, "an invisible character"),
    (0x2066, 0x2069, "a control of writing direction"),
    (0x206A, 0x206F, "an invisible character"),
    (0x3164, 0x3164, "an invisible letter"),
    (0xFE00, 0xFE0E, "a variation selector"),
    (0xFEFF, 0xFEFF, "a zero-width character"),
    (0xFFA0, 0xFFA0, "an invisible letter"),
    (0xE0000, 0xE007F, "a tag character, which spells text that nobody sees"),
    (0xE0080, 0xE0FFF, "a variation selector, which may carry text that nobody sees"),
)
_ZERO_WIDTH: Final = range(0x200B, 0x200E)
_MARKS: Final = range(0x200E, 0x2010)
_CONTROLS: Final = frozenset(chr(code) for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))) - set("\t\n\r")

_ASIDE: Final = "tells the model to set other instructions aside"
_FROM_USER: Final = "tells the model to keep something from its user"
_SECRET_FILES: Final = "names files that hold secrets"
_COMMANDS: Final = (
    (
        r"\b(?:ignore|disregard|forget|override)\b[^.]{0,30}\b(?:previous|prior|above|earlier|all|other|system)\b"
        r"[^.]{0,30}\b(?:instruction|rule|prompt|guideline|message)s?\b",
        _ASIDE,
    ),
    (r"<\s*/?\s*(?:important|system|secret|hidden|instructions?|critical)\s*>", "has a tag for the model"),
    (
        r"\b(?:do\s+not|don't|never|must\s+not)\s+(?:tell|mention|inform|reveal|disclose|notify|show|explain)\b"
        r"[^.]{0,40}\b(?:user|human|person|anyone)\b",
        _FROM_USER,
    ),
    (r"\bwithout\s+(?:telling|informing|asking|notifying|mentioning)\b[^.]{0,30}\b(?:user|human)\b", _FROM_USER),
    (
        r"\b(?:secretly|silently|covertly)\b[^.]{0,40}\b(?:send|read|call|include|copy|forward|pass)\b",
        "asks for secrecy",
    ),
    (r"(?:~|\$home|/home/\w+|/root)/\.(?:ssh|aws|gnupg|kube)\b|\.ssh/|/etc/(?:passwd|shadow)\b", _SECRET_FILES),
    (r"\bid_(?:rsa|ed25519|ecdsa)\b", _SECRET_FILES),
    (
        r"\b(?:read|send|include|pass|attach|reveal|print|repeat)\b[^.]{0,30}\bsystem\s+prompt\b",
        "asks for the system prompt",
    ),
    (
        r"\b(?:send|include|pass|forward|attach)\b[^.]{0,40}\b(?:conversation|chat)\s+(?:history|log|transcript)\b",
        "asks for the conversation",
    ),
    (
        r"\b(?:before|instead\s+of|rather\s+than)\s+(?:using|calling|invoking)\s+(?:(?:any|all|every)\s+)?other\s+tools?\b",
        "wants to come before other tools",
    ),
)
_SPACE: Final = r"[\s\v\pZ\x{85}]"
"""White space and line breaks, by Unicode."""
# RE2 takes time linear in the text, which servers choose.
_PATTERNS: Final = tuple((re2.compile("(?is)" + pattern.replace(r"\s", _SPACE)), why) for pattern, why in _COMMANDS)

_LOOKS_LIKE: Final = str.maketrans(
    # Cyrillic, Greek and Latin letters as they look, and the ASCII characters that people take for each other.
    dict(zip("аеорсухіјѕԁһӏАВЕКМНОРСТХ", "aeopcyxijsdhlabekmhopctx", strict=True))
    | dict(zip("αεικνορτυχɑɡıΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "aeikvoptuxagiabezhlkmnoptyx", strict=True))
    | {"0": "o", "O": "o", "1": "l", "I": "l", "|": "l"}
)


@dataclass(frozen=True, slots=True)
class DefinitionFinding:
    """A place in a definition that a person should look at."""

    upstream: str
    what: str
    """The definition: `tool 'roll'`, or `instructions`."""
    where: str
    """The member within it, dotted, or the URI of a skill's file; empty for its name."""
    why: str

    def __str__(self) -> str:
        where = f" {self.where}:" if self.where else ""
        return f"{self.upstream}: {self.what}:{where} {self.why}"


@dataclass(frozen=True, slots=True)
class SkillText:
    """A text file of a skill, as its server sends it."""

    uri: str
    text: str | None
    """None where it could not be read."""
    flaw: str | None = None
    """Why it could not be read, or may not be trusted."""


SkillTexts = Mapping[tuple[str, str], Sequence[SkillText]]
"""The files of skills, by the upstream and the URI of the skill."""


@dataclass(frozen=True, slots=True)
class _Named:
    upstream: str
    kind: Kind
    name: str
    what: str
    """The definition, as a finding names it."""


def scan(
    offered: Mapping[str, Approved], prefixes: Mapping[str, str], skill_texts: SkillTexts | None = None
) -> list[DefinitionFinding]:
    """All findings, in the order of the upstreams; `prefixes` are those of their names."""
    skill_texts = skill_texts or {}
    found: list[DefinitionFinding] = []
    names: list[_Named] = []
    nouns = {**NOUNS, Kind.RESOURCES: "resource"}
    for upstream, approved in offered.items():
        manifest = approved.manifest
        if manifest is None:
            continue
        if manifest.instructions:
            found += _in_texts(upstream, "instructions", [("", manifest.instructions)])
        for kind, entries in manifest.lists.items():
            for entry in entries:
                value = parse_value(entry)
                members = value if isinstance(value, dict) else {}
                what = f"{nouns[kind]} {str(members.get(kind.key, ''))!a}"
                found += list(_in_texts(upstream, what, _texts(value, "")))[:MAX_FINDINGS]
                files = skill_texts.get((upstream, str(members.get("uri"))), ()) if kind is Kind.SKILLS else ()
                found += list(_in_files(upstream, what, files))[:MAX_FINDINGS]
                if kind is Kind.SKILLS and members.get("resources") == "dynamic":
                    why = "its files are not listed: what they say is not pinned, and may change"
                    found.append(DefinitionFinding(upstream, what, "resources", why))
                name = _name(kind, members)
                if name is not None:
                    names.append(_Named(upstream, kind, name, what))
    return [*found, *_shadows(names, prefixes), *_look_alikes(names)]


def _in_files(upstream: str, what: str, files: Iterable[SkillText]) -> Iterator[DefinitionFinding]:
    for file in files:
        if file.flaw is not None:
            yield DefinitionFinding(upstream, what, ascii(file.uri)[1:-1], ascii(file.flaw)[1:-1])
        if file.text is not None:
            yield from _in_texts(upstream, what, [(ascii(file.uri)[1:-1], file.text)])


def _name(kind: Kind, entry: Mapping[str, object]) -> str | None:
    """The name by which a model knows an entry; None where it has none."""
    if kind is Kind.SKILLS:
        frontmatter = entry.get("frontmatter")
        return str(frontmatter.get("name", "")) if isinstance(frontmatter, dict) else ""
    return str(entry.get(kind.key, "")) if kind in (Kind.TOOLS, Kind.PROMPTS) else None


def _in_texts(upstream: str, what: str, texts: Iterable[tuple[str, str]]) -> Iterator[DefinitionFinding]:
    for where, whole in texts:
        text = whole[:MAX_TEXT]
        for why in (*_hidden(text), *_commands(text)):
            yield DefinitionFinding(upstream, what, where, why)
        if len(whole) > MAX_TEXT:
            why = f"is so long that its end was not looked at: {len(whole) - MAX_TEXT} of {len(whole)} characters"
            yield DefinitionFinding(upstream, what, where, why)


def _texts(value: object, where: str) -> Iterator[tuple[str, str]]:
    """All texts of a JSON value, keys included, each with its place."""
    match value:
        case str():
            yield where, value
        case list():
            for index, item in enumerate(value):
                yield from _texts(item, f"{where}.{index}" if where else str(index))
        case dict():
            for key, member in value.items():
                place = f"{where}.{key}" if where else str(key)
                yield place, str(key)
                yield from _texts(member, place)
        case _:
            return


def _hidden(text: str) -> Iterator[str]:
    """The hidden characters of a text, each kind once."""
    told: set[str] = set()
    if text.isascii() and _CONTROLS.isdisjoint(text):
        return
    is_right_to_left = any(unicodedata.bidirectional(each) in {"R", "AL"} for each in text)
    for index, character in enumerate(text):
        name = _hidden_name(text, index, marks_are_spelling=is_right_to_left)
        if name is None or name in told:
            continue
        told.add(name)
        yield f"has {name} (U+{ord(character):04X}): {_excerpt(text, index, index + 1)}"


def _hidden_name(text: str, index: int, *, marks_are_spelling: bool) -> str | None:
    character = text[index]
    code = ord(character)
    if character in _CONTROLS:
        return "a control character"
    name = next((name for first, last, name in _HIDDEN if first <= code <= last), None)
    if name is None:
        return None
    before, after = text[index - 1 : index], text[index + 1 : index + 2]
    if code in _ZERO_WIDTH and (_joins(before, after) or _is_emoji(before)):
        return None  # within an emoji, or a word of a script that needs it
    if code in _MARKS and marks_are_spelling:
        return None
    return name


def _joins(before: str, after: str) -> bool:
    """Whether both neighbours are letters of scripts in which zero-width joiners and non-joiners are spelling."""
    return all(each and ord(each) >= 0x0600 and unicodedata.category(each)[0] in "LM" for each in (before, after))


def _is_emoji(character: str) -> bool:
    return bool(character) and (unicodedata.category(character) in {"So", "Sk"} or ord(character) == 0xFE0F)


def _commands(text: str) -> Iterator[str]:
    """Text in a definition that addresses the model and not the tool's use."""
    for pattern, why in _PATTERNS:
        match = pattern.search(text)
        if match is not None:
            yield f"{why}: {_excerpt(text, *match.span())}"


def _excerpt(text: str, start: int, end: int) -> str:
    """The place in a text, with all but ASCII escaped."""
    first, last = max(0, start - _AROUND), min(len(text), end + _AROUND)
    return f"{'...' if first else ''}{text[first:last]!a}{'...' if last < len(text) else ''}"


def _shadows(names: Iterable[_Named], prefixes: Mapping[str, str]) -> Iterator[DefinitionFinding]:
    """Names that callers could take for those of another upstream."""
    exposed: dict[tuple[Kind, str], _Named] = {}
    for one in names:
        for upstream, other_prefix in prefixes.items():
            if upstream != one.upstream and other_prefix and one.name.lower().startswith(f"{other_prefix}__"):
                yield _finding(one, f"its name begins as those of {upstream!r} do")
        prefix = prefixes.get(one.upstream) if one.kind is not Kind.SKILLS else None
        shown = f"{prefix}__{one.name}" if prefix else one.name
        other = exposed.setdefault((one.kind, shown), one)
        if other.upstream != one.upstream:
            yield _finding(one, f"callers would see it under the name of a {NOUNS[one.kind]} of {other.upstream!r}")


def _look_alikes(names: Iterable[_Named]) -> Iterator[DefinitionFinding]:
    """Different names that look the same."""
    seen: dict[tuple[Kind, str], _Named] = {}
    for one in names:
        skeleton = _skeleton(one.name)
        if not one.name.isascii() and skeleton.isascii():
            yield _finding(one, f"its name has characters that look like others: it reads {skeleton!r}")
        other = seen.setdefault((one.kind, skeleton), one)
        if other.name != one.name:
            where = "" if other.upstream == one.upstream else f" of {other.upstream!r}"
            yield _finding(one, f"its name looks like {other.name!a}{where}")


def _skeleton(name: str) -> str:
    """The visual form of a name: equal for names that people mistake for each other (Unicode Technical Standard 39)."""
    folded = unicodedata.normalize("NFKC", name)
    return folded.translate(_LOOKS_LIKE).lower().replace("rn", "m").replace("vv", "w")


def _finding(one: _Named, remark: str) -> DefinitionFinding:
    return DefinitionFinding(one.upstream, one.what, "", remark)
