"""Which results of a function are remembered."""

from __future__ import annotations

from mcproxy.protocol.memo import Results, remember_short


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


def test_results_by_text_are_made_once_and_the_oldest_goes_first() -> None:
    calls: list[str] = []

    def shouted(text: str) -> str:
        calls.append(text)
        return text.upper()

    results = Results(shouted, most=2, longest=3)
    found = list(map(results.__getitem__, ["a", "b", "a", "long", "long", "c", "b", "a"]))
    assert found == ["A", "B", "A", "LONG", "LONG", "C", "B", "A"]
    assert calls == ["a", "b", "long", "long", "c", "a"]
    assert list(results) == ["c", "a"]
