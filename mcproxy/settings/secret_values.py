"""Judge from its name and its form whether a value is probably a secret."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Final

_SECRET_NAME: Final = re.compile(
    r"(?i)key|token|secret|passw|pwd|auth|credential|cookie|session|signature|dsn|conn\w{0,32}str|(^|[-_])(pat|pass|jwt)$"
)
_NO_SECRET: Final = re.compile(r"(?i)true|false|yes|no|on|off|none|null|\d{1,6}|[a-z]{1,8}|")
_PATH: Final = re.compile(r"~?/|\.{1,2}/|[A-Za-z]:\\")
_TOKEN: Final = re.compile(r"ghp_|gho_|github_pat_|glpat-|sk-|xox[a-z]-|AKIA|AIza|eyJ|ntn_|hf_|npm_|pypi-")
_UUID: Final = re.compile(r"(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PASSWORD_IN_URL: Final = re.compile(r"://[^/@\s]*:[^/@\s]+@")
"""A URL with a user and a password."""


def looks_secret(name: str, value: str) -> bool:
    """Whether a value is probably a secret, judged by its name and by its form."""
    if "${" in value:
        return False
    if PASSWORD_IN_URL.search(value) or _TOKEN.match(value) or _UUID.fullmatch(value):
        return True
    if _PATH.match(value) or "://" in value:
        return False
    if _SECRET_NAME.search(name) and not _NO_SECRET.fullmatch(value):
        return True
    return any(_is_random(part) for part in re.split(r"[-_.:/@,\s]", value))


def _is_random(text: str) -> bool:
    """Whether a text mixes letters and digits, is long, and has the entropy of random characters."""
    if len(text) < 16 or text.isalpha() or text.isdigit():
        return False
    entropy = -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())
    return entropy > 3
