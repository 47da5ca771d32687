"""When two identifiers name the same OAuth issuer."""

from __future__ import annotations


def normal_issuer(issuer: str) -> str:
    """The identifier without the slash that is its whole path: `https://a.example/` is `https://a.example`.

    Both are the same URI (RFC 3986, section 6.2.3), lead to the same metadata, and Google, Auth0 and others write one
    in one place and the other in the next. Identifiers that differ in anything else stay different.
    """
    return issuer[:-1] if issuer.endswith("/") and issuer.count("/") == 3 else issuer


def is_same_issuer(one: str, other: str) -> bool:
    """Whether two identifiers name the same issuer."""
    return normal_issuer(one) == normal_issuer(other)
