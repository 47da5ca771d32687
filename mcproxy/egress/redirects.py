"""Which redirects of authorization servers are followed: those within one origin, a few, with the method unchanged.

Decides only. Whoever follows one checks the next URL by its own address rules, as it checked the first (R43).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from yarl import URL

MAX_REDIRECTS: Final = 5
"""Redirects that one request follows."""
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class RedirectRefused(Exception):
    """A redirect that is not followed. The text says where it leads, without the query, and why."""


def next_hop(method: str, url: URL, status: int, location: str | None) -> URL:
    """The URL to send the same request to after a redirect from `url`. Raises RedirectRefused."""
    try:
        target = url.join(URL(location or ""))
        is_within = target.origin() == url.origin()
    except ValueError:
        raise RedirectRefused(f"{_shown(url)} answered HTTP {status}, a redirect without a usable Location") from None
    what = f"{_shown(url)} answered HTTP {status}, a redirect to {_shown(target)}"
    if not location or not is_within:
        raise RedirectRefused(f"{what}, which is not followed: it leads to another origin")
    if status == HTTPStatus.SEE_OTHER and method != "GET":
        raise RedirectRefused(f"{what}, which is not followed: it does not repeat the {method}")
    return target.with_fragment(None)


def _shown(url: URL) -> str:
    """The URL for a sentence: without its query and fragment, which may hold a secret, and not long."""
    return str(url.with_query(None).with_fragment(None).with_user(None))[:200]
