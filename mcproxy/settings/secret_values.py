"""Decides what names a secret, what looks like one, and where secrets are in the arguments of a command.

Every mask, redaction and import asks here. Judges names and forms; knows no values.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

_SECRET_NAME: Final = re.compile(
    r"(?i)secret|token|passw|passphrase|passcode|pwd|credential|auth|cookie|session|private|signature|bearer|dsn"
    r"|(?:api|access)[-_. ]?key|conn\w{0,32}str|(?<![a-z])(?:pat|pass|jwt|pin|t?otp)(?![a-z])"
)
_PERHAPS: Final = re.compile(r"(?i)key|hash")
"""Parts of names that often name a secret, and often something else, such as `sort_key`."""
_ABOUT_A_SECRET: Final = re.compile(
    r"(?i)[-_.](?:mode|type|kind|url|uri|file|path|dir|folder|method|provider|server|endpoint|issuer|ttl|timeout|limit"
    r"|count|length|size|format|algorithms?|name)$"
)
"""The ends of names such as `token-type` and `auth_url`, whose values are no secrets."""
_USUALLY_A_WORD: Final = re.compile(r"(?i)auth|cookie|session|signature|hash")
"""Names whose values are often ordinary words: `--auth none`."""
_NO_SECRET: Final = re.compile(r"(?i)true|false|yes|no|on|off|none|null|\d{1,6}|[a-z]{1,8}|")
_SWITCH: Final = re.compile(r"(?i)true|false|yes|no|on|off|none|null|\d{1,6}|")
_PATH: Final = re.compile(r"~?/|\.{1,2}/|[A-Za-z]:\\")
_TOKEN: Final = re.compile(r"ghp_|gho_|github_pat_|glpat-|sk-|xox[a-z]-|AKIA|AIza|eyJ|ntn_|hf_|npm_|pypi-")
_UUID: Final = re.compile(r"(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PASSWORD_IN_URL: Final = re.compile(r"://[^/@\s]*:(?P<value>[^/@\s]+)@")
"""A URL with a user and a password."""

_OPTION: Final = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
_HEADER: Final = re.compile(r"(?P<name>[\w-]{1,64}):\s+(?:(?:bearer|basic|token)\s+)?(?P<value>.+)", re.DOTALL | re.I)
_SCHEME: Final = re.compile(r"(?i)\b(?:bearer|basic)\s+(?P<value>[^\s\"',;}]+)")
_PAIR: Final = re.compile(
    r"(?<![\w.-])(?=(?P<name>[a-z][\w.-]{0,63})[\"']?\s{0,8}[:=]\s{0,8}[\"']?"
    r"(?!(?:bearer|basic|token)\s)(?P<value>[^\s\"'&;,}]{1,4096}))",
    re.I,
)
"""A name and its value, also within the value of another one: `url=https://host/?token=X`."""
_WORD: Final = re.compile(r"[^\s\"';,{}]+")
_INNER_OPTION: Final = re.compile(r"(?<!\S)--?(?P<name>[A-Za-z][\w.-]{0,63})\s{1,8}[\"']?(?P<value>[^\s\"'-][^\s\"']*)")
_USERS: Final = frozenset({"u", "user", "userpwd"})
"""Options whose value is `USER:PASSWORD`."""


def names_secret(name: str) -> bool:
    """Whether the value of anything of this name is taken for a secret, whatever its form."""
    return _SECRET_NAME.search(name) is not None


def may_name_secret(name: str) -> bool:
    """The same, or it is a key of some kind; not names such as `token_url`, whose value is about a secret."""
    return _ABOUT_A_SECRET.search(name) is None and (names_secret(name) or _PERHAPS.search(name) is not None)


def looks_secret(name: str, value: str) -> bool:
    """Whether a value is probably a secret, judged by its name and by its form."""
    if "${" in value:
        return False
    if PASSWORD_IN_URL.search(value) or _TOKEN.match(value) or _UUID.fullmatch(value):
        return True
    if _PATH.match(value) or "://" in value:
        return False
    if (names_secret(name) or _PERHAPS.search(name)) and not _NO_SECRET.fullmatch(value):
        return True
    return any(_is_random(part) for part in re.split(r"[-_.:/@,\s]", value))


class ArgumentValue(msgspec.Struct, frozen=True):
    """A value in the arguments of a command, with its name there: that of an option, a header, or a variable."""

    index: int
    start: int
    end: int
    name: str
    value: str

    @property
    def is_secret(self) -> bool:
        """Whether it must not be shown."""
        if _SWITCH.fullmatch(self.value):
            return False
        return may_name_secret(self.name) or looks_secret(self.name, self.value)


def argument_values(arguments: Sequence[str]) -> Iterator[ArgumentValue]:
    """The values of `--name value`, `--name=value`, `NAME=value` and `Header: value`, and those in URLs and JSON."""
    option = ""
    for index, argument in enumerate(arguments):
        match = _OPTION.fullmatch(argument)
        if match is not None and match["value"] is None:
            option = match["name"]
            continue
        name, start = (match["name"], match.start("value")) if match else (option, 0)
        text = argument[start:]
        if name in _USERS and ":" in text:
            start, name = start + text.index(":") + 1, "password"
        for inner, begin, end in _inner(argument[start:], name):
            yield ArgumentValue(index, start + begin, start + end, inner, argument[start + begin : start + end])
        option = ""


def _inner(text: str, name: str) -> Iterator[tuple[str, int, int]]:
    """The values in one argument, which as a whole has this name: their names and their places."""
    if may_name_secret(name):
        yield (name, 0, len(text))
    else:
        for match in _WORD.finditer(text):
            yield (name, *match.span())
    if (header := _HEADER.fullmatch(text)) is not None:
        yield (header["name"], *header.span("value"))
    for match in PASSWORD_IN_URL.finditer(text):
        yield ("password", *match.span("value"))
    for match in _SCHEME.finditer(text):
        yield ("authorization", *match.span("value"))
    for pattern in (_PAIR, _INNER_OPTION):
        for match in pattern.finditer(text):
            yield (match["name"], *match.span("value"))


def masked_arguments(arguments: Sequence[str], mask: str) -> list[str]:
    """The arguments with `mask` in place of each value that must not be shown."""
    shown = [*arguments]
    secrets = [found for found in argument_values(arguments) if found.is_secret]
    end = {index: len(argument) for index, argument in enumerate(arguments)}
    for found in sorted(secrets, key=lambda secret: (secret.end, secret.end - secret.start), reverse=True):
        if found.end <= end[found.index]:  # what a larger one covers is masked already
            text = shown[found.index]
            shown[found.index] = text[: found.start] + mask + text[found.end :]
            end[found.index] = found.start
    return shown


def argument_secrets(arguments: Iterable[str]) -> Iterator[str]:
    """Values to redact wherever they appear: those that must not be shown, without ordinary words."""
    for found in argument_values([*arguments]):
        is_word = found.value.isalpha() and _USUALLY_A_WORD.search(found.name) is not None
        if found.is_secret and not is_word and not _PATH.match(found.value):
            yield found.value


def _is_random(text: str) -> bool:
    """Whether a text mixes letters and digits, is long, and has the entropy of random characters."""
    if len(text) < 16 or text.isalpha() or text.isdigit():
        return False
    entropy = -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())
    return entropy > 3
