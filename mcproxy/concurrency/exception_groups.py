"""The one error of an exception group, for callers that catch by type."""

from __future__ import annotations


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception of a group that is no group itself."""
    inner = group.exceptions[0]
    return first_of(inner) if isinstance(inner, BaseExceptionGroup) else inner
