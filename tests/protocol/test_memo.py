"""Which results of a function are remembered."""

from __future__ import annotations

from mcproxy.protocol.memo import remember_short


def test_results_for_short_arguments_are_remembered_and_others_are_not() -> None:
    calls: list[tuple[bytes, int]] = []

    @remember_short(3, most=2)
    def doubled(data: bytes, times: int) -> bytes:
        calls.append((data, times))
        return data * times

    for data, times in ((b"abc", 2), (b"abc", 2), (b"abc", 3), (b"abcd", 2), (b"abcd", 2)):
        assert doubled(data, times) == data * times
    assert calls == [(b"abc", 2), (b"abc", 3), (b"abcd", 2), (b"abcd", 2)]


def test_the_least_recently_used_result_is_dropped() -> None:
    calls: list[bytes] = []

    @remember_short(3, most=2)
    def remembered(data: bytes) -> bytes:
        calls.append(data)
        return data

    for data in (b"a", b"b", b"a", b"c", b"a", b"b"):
        assert remembered(data) == data
    assert calls == [b"a", b"b", b"c", b"b"]
