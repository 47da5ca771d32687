"""What an exception group was raised for."""

from __future__ import annotations

from mcproxy.concurrency.exception_groups import first_of


def test_the_first_exception_is_found_however_deep_it_is() -> None:
    first, second = ValueError(), KeyError()
    inner = ExceptionGroup("", [ExceptionGroup("", [first]), second])
    assert first_of(BaseExceptionGroup("", [inner, second])) is first
