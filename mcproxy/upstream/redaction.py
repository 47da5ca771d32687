"""Redaction of one upstream's secrets from the text that operators and clients read (R44), by value alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from mcproxy.egress.egress import from_environment
from mcproxy.protocol.json.malformed import is_json
from mcproxy.protocol.jsonrpc import json_of, parse_text, raw
from mcproxy.settings import UpstreamSettings
from mcproxy.settings.secret_values import argument_secrets
from mcproxy.settings.url_secrets import url_secrets

if TYPE_CHECKING:
    import re2

MIN_SECRET = 8
"""Characters of a secret at least; shorter values occur in ordinary text."""
MIN_NAMED: Final = 6
"""Characters of a secret among a command's arguments, which is one by its name or form."""
MAX_ADDED: Final = 8
"""Later secrets, such as tokens, that are still looked for; more if the last addition alone has more."""
_MASK = "[redacted]"
MAX_REPLACED: Final = 65_536
"""Bytes of JSON that is parsed string by string, at a second for each MiB; longer JSON is searched as text."""
MAX_TIMES: Final = 1000
"""Secrets that are replaced one by one in longer JSON; JSON with more of them is dropped whole."""
_JSON_WORD: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9][0-9.eE+-]*')
"""A string or a number in valid JSON."""


class Redaction(msgspec.Struct, frozen=True):
    """Removes the values of an upstream's `env` and `headers`, and secrets in its `url` and arguments, from a text."""

    secrets: tuple[str, ...]
    added: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: UpstreamSettings, credentials: Iterable[str] = ()) -> Redaction:
        """`credentials` are the values that the link's callers brought."""
        inherited = (value for name, value in os.environ.items() if spec.inherits(name))
        given = (*spec.env.values(), *inherited, *spec.headers.values(), *credentials)
        values = {word for value in given for word in (value, *value.split())} | set(url_secrets(spec.url or ""))
        values |= spec.leaving.secrets() | from_environment(os.environ).secrets()
        named = {word for word in argument_secrets((*spec.args, *spec.headers_command)) if len(word) >= MIN_NAMED}
        found = named | {value for value in values if len(value) >= MIN_SECRET}
        return cls(tuple(sorted(found, key=len, reverse=True)))

    def including(self, secrets: Iterable[str]) -> Redaction:
        """This redaction with later secrets: all of these, and the last few before them."""
        known = {*self.secrets, *self.added}
        fresh = tuple(secret for secret in secrets if len(secret) >= MIN_SECRET and secret not in known)
        if not fresh:
            return self
        return Redaction(self.secrets, (*fresh, *self.added)[: max(MAX_ADDED, len(fresh))])

    def __call__(self, text: str) -> str:
        for secret in (*self.secrets, *self.added):
            text = text.replace(secret, _MASK)
        return text

    def in_json(self, data: Raw) -> Raw:
        """`data` without the secrets, however its strings are escaped; all else of it byte for byte.

        JSON longer than MAX_REPLACED is replaced by a string that says so, if it holds very many secrets or one outside
        any string.
        """
        if not (self.secrets or self.added):
            return data
        if len(data) > MAX_REPLACED:
            return self._in_large_json(data)
        return Raw(_JSON_WORD.sub(self._word, bytes(data)))

    def _in_large_json(self, data: Raw) -> Raw:
        masked, times = self._escaped().subn(_MASK.encode(), bytes(data), MAX_TIMES + 1)
        if not times:
            return data
        # A number without its digits, or a backslash without the character it escapes, is no JSON.
        return Raw(masked) if times <= MAX_TIMES and is_json(masked) else raw(_MASK)

    def _escaped(self) -> re2._Regexp:
        """A pattern that finds each secret in JSON, whichever of its characters are escaped."""
        import re2

        options = re2.Options()
        options.max_mem = 64 << 20
        return re2.compile(
            "|".join("".join(map(_any_form, secret)) for secret in (*self.secrets, *self.added)), options
        )

    def _word(self, match: re.Match[bytes]) -> bytes:
        text = parse_text(match[0])
        said = match[0].decode() if text is None else text
        shown = self(said)
        return match[0] if shown == said else json_of(shown)


def _any_form(letter: str) -> str:
    """A pattern for the ways to write a character in JSON (RFC 8259, section 7)."""
    import re2

    units = letter.encode("utf-16-be", "surrogatepass")
    by_number = "".join(rf"\\u(?i:{units[at : at + 2].hex()})" for at in range(0, len(units), 2))
    ways = [by_number, re2.escape(letter.encode(errors="replace").decode())]
    if letter in _SHORT:
        ways.append(re2.escape(_SHORT[letter]))
    return f"(?:{'|'.join(ways)})"


_SHORT: Final = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\", "/": "\\/"}
