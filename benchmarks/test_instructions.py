"""The twin of `instructions`: what a profile of callgrind's is read as."""

from __future__ import annotations

from pathlib import Path

from benchmarks.instructions import is_whole, total, under_callgrind
from benchmarks.proxies import Program

PROFILE = "version: 1\nevents: Ir\n\nfn=(1) main\n16 400\n\ntotals: 123456\n"


def test_the_instructions_of_a_profile_are_its_total() -> None:
    assert total(PROFILE) == 123456


def test_a_program_runs_under_callgrind_with_its_own_arguments_and_environment() -> None:
    program = under_callgrind(Program(["proxy", "--port", "1"], {"A": "b"}), Path("/there"))
    assert program.command[:2] == ["valgrind", "--tool=callgrind"]
    assert program.command[-3:] == ["proxy", "--port", "1"]
    assert program.environment == {"A": "b"}


def test_a_response_is_whole_with_the_last_byte_of_its_length_or_its_last_chunk() -> None:
    assert is_whole(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    assert not is_whole(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok")
    assert is_whole(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
    assert not is_whole(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
