"""The twin of `mcproxy.service.heap`: which parameters of malloc are set, and when none is."""

from __future__ import annotations

import platform

import pytest

from mcproxy.service.heap import KEPT, LARGEST, c_mallopt, keep_freed_memory

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3


def set_in(environ: dict[str, str]) -> dict[int, int]:
    values: dict[int, int] = {}

    def mallopt(number: int, value: int) -> int:
        values[number] = value
        return 1

    keep_freed_memory(mallopt, environ)
    return values


def test_freed_memory_is_kept_up_to_a_limit() -> None:
    assert set_in({"PATH": "/bin"}) == {TRIM_THRESHOLD: KEPT, MMAP_THRESHOLD: LARGEST}


@pytest.mark.parametrize(
    "environ",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"MALLOC_MMAP_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.malloc.trim_threshold=131072"},
    ],
)
def test_what_the_environment_says_of_either_stands(environ: dict[str, str]) -> None:
    assert set_in(environ) == {}


def test_other_tunables_are_no_reason_to_set_nothing() -> None:
    assert set_in({"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}) != {}


def test_nothing_is_set_where_the_c_library_has_no_such_function() -> None:
    keep_freed_memory(None, {})


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a function of glibc's")
def test_glibc_has_the_function() -> None:
    assert c_mallopt() is not None
