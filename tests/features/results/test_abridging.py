"""The twin of `mcproxy.features.results.abridging`: what is over its limit is cut, or passes whole and is counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mcproxy.call.calls import Call
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.concurrency.turns import at_once
from mcproxy.features.results.abridging import MAX_BLOCKS, Abridgement, SizeVerdict
from mcproxy.features.results.kept import KeptResults, Origin
from mcproxy.features.results.shortening import MIN_TEXT, NOTE
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import Params, first_level, raw, size_of
from mcproxy.protocol.methods import row_of
from mcproxy.sealing import Sealer
from mcproxy.settings import KeptResultLimits
from tests.fakes.upstream import FakeClient, decoded

LIMIT = 65_536
CALLER = Caller(ANONYMOUS, LATEST)
IMAGE = {"type": "image", "data": "A" * 1_200_000, "mimeType": "image/png"}


class Rig:
    def __init__(self, limit: int = LIMIT, **kept: int) -> None:
        self.kept = KeptResults(KeptResultLimits.model_validate(kept), Sealer(b"secret"), lambda: 0.0)
        self.limit = limit

    def abridged(self, result: Mapping[str, object]) -> tuple[Params, SizeVerdict | None]:
        return at_once(Abridgement(self.kept, Origin(CALLER), self.limit).of(first_level(result), None))

    def read(self, uri: str) -> str:
        call = Call(row_of("resources/read"), {"uri": raw(uri)}, CALLER, FakeClient())
        contents: Any = decoded(self.kept.read(call, lambda caller, origin: True))
        return str(contents["contents"][0]["text"])


def text(value: str) -> dict[str, object]:
    return {"type": "text", "text": value}


def link(number: int) -> dict[str, object]:
    return {"type": "resource_link", "uri": f"file:///{number}", "name": f"file {number}"}


@pytest.mark.parametrize(
    "result",
    [
        {"content": [IMAGE]},
        {"content": [IMAGE, text("short")], "structuredContent": {"rows": [1] * 100}},
        {"content": [text("short")], "_meta": {"x": "y" * 1_000_000}},
        {"content": [{**text("short"), "_meta": {"x": "y" * 1_000_000}}]},
        {"content": [], "more": "y" * 1_000_000},
        {"content": [{}] * (MAX_BLOCKS + 1)},
        {"content": "y" * 1_000_000},
    ],
    ids=["image", "image beside others", "meta", "meta of a block", "another member", "too many blocks", "no blocks"],
)
def test_what_is_never_cut_passes_whole_and_is_counted(result: dict[str, object]) -> None:
    it = Rig()
    assert it.abridged(result) == (first_level(result), SizeVerdict.UNCUT)
    assert it.kept.size == 0


def test_what_is_over_its_limit_by_an_image_though_texts_were_cut_is_counted_so() -> None:
    shown, verdict = Rig().abridged({"content": [IMAGE, text("x" * 100_000)]})
    assert verdict is SizeVerdict.UNCUT
    assert len(shown["content"]) < len(raw(IMAGE)) + LIMIT


def test_r81_blocks_that_are_large_and_many_are_cut_and_all_of_them_kept() -> None:
    it = Rig()
    blocks = [text(f"{number} " + "x" * 1500) for number in range(1500)]
    shown, verdict = it.abridged({"content": blocks})
    assert verdict is SizeVerdict.SHORTENED
    assert LIMIT // 2 < size_of(shown) <= LIMIT
    uri = bytes(shown["content"]).rpartition(b'"uri":"')[2].partition(b'"')[0].decode()
    assert msgspec.json.decode(it.read(uri)) == blocks


@pytest.mark.parametrize("share", [1_000_000, 2_400_000])
def test_what_cannot_be_kept_together_passes_whole(share: int) -> None:
    it = Rig(max_bytes_per_principal=share)
    result = {"content": [text("x" * 1_200_000), text("y" * 1_200_000)]}
    shown, verdict = it.abridged(result)
    if share < 2_400_000:
        assert (shown, verdict) == (first_level(result), SizeVerdict.UNKEPT)
    else:
        assert verdict is SizeVerdict.SHORTENED
        uris = {part.partition(b'"')[0].decode() for part in bytes(shown["content"]).split(b'"uri":"')[1:]}
        assert sorted(it.read(uri)[:1] for uri in uris) == ["x", "y"]
    large = {"content": [], "structuredContent": {"rows": ["x" * 100] * 30_000}}
    assert it.abridged(large) == (first_level(large), SizeVerdict.UNKEPT)


blocks_of_results = st.lists(
    st.one_of(
        st.builds(lambda size: text("é" * size), st.sampled_from([0, 1, 100, 400, 600, 3000, 50_000])),
        st.builds(lambda size: text('"' * size), st.sampled_from([5, 900, 20_000])),
        st.builds(
            lambda size: {"type": "resource", "resource": {"uri": "a:b", "text": "t" * size}},
            st.sampled_from([3, 900, 9000]),
        ),
        st.builds(link, st.integers(0, 9)),
        st.just({"type": "image", "data": "A" * 2000, "mimeType": "image/png"}),
        st.builds(lambda size: {"type": "odd", "value": "o" * size}, st.sampled_from([1, 5000])),
    ),
    max_size=60,
)


def measured(blocks: list[dict[str, Any]]) -> int:
    """Bytes of blocks that count, from first principles."""
    total = 0
    for block in blocks:
        holder = block.get("resource", block)
        if "text" in holder:
            total += len(holder["text"].encode()) + 2 - len(raw(holder["text"]))
        total += 0 if block["type"] == "image" else len(raw(block)) + 1
    return total


@given(blocks_of_results, st.integers(1000, 30_000), st.integers(0, 300))
def test_what_is_shown_is_within_the_limit_but_for_what_is_never_cut(
    blocks: list[dict[str, Any]], limit: int, rows: int
) -> None:
    value = {"rows": list(range(rows))}
    it = Rig(limit)
    result, verdict = it.abridged({"content": blocks, "structuredContent": value})
    images = [block for block in blocks if block["type"] == "image"]
    size = measured(blocks) + len(raw(value))
    if verdict is None:
        assert result == first_level({"content": blocks, "structuredContent": value})
        assert size + len(raw(images)) <= limit
        return
    event(verdict.value)
    shown: Any = {key: msgspec.json.decode(value) for key, value in result.items()}
    assert size + len(raw(images)) + 100 > limit
    assert [block for block in shown["content"] if block["type"] == "image"] == images
    took = measured(shown["content"]) + len(result["structuredContent"])
    assert took <= max(limit, 4 * MIN_TEXT + 4 * NOTE) + 100
    for link_block in shown["content"]:
        if str(link_block.get("uri")).startswith("mcproxy-result:"):
            assert len(it.read(link_block["uri"]).encode()) == link_block["size"]


def test_r78_others_have_their_turn_while_blocks_are_read() -> None:
    result = first_level({"content": [text("x")] * MAX_BLOCKS})
    kept = Rig().kept
    assert len(list(Abridgement(kept, Origin(CALLER), LIMIT).of(result, None))) >= 100
