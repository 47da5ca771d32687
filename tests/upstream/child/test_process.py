"""Children as upstreams: real processes, their manners and their deaths."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from msgspec.structs import replace

from mcproxy.call.calls import Call, Failed, Outcome
from mcproxy.call.clients import ListChanged, Notice
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import Principal
from mcproxy.call.upstreams import Connected, Disconnected, LinkState, UpstreamChanged
from mcproxy.protocol.jsonrpc import Notification
from mcproxy.protocol.methods import Kind
from mcproxy.settings import UpstreamSettings, UpstreamTimeouts
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.child.command import REAPER
from mcproxy.upstream.child.process import child as started
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.link import task_group
from tests.timeouts import GUARD
from tests.upstream.support import (
    QUICK,
    UNREADABLE,
    FakeClient,
    FakeListener,
    Running,
    answering,
    child,
    failure,
    refusing,
    request,
    running,
    tool,
    value,
)

pytestmark = pytest.mark.anyio


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pid: int) -> None:
    with anyio.fail_after(GUARD):
        while alive(pid):
            await anyio.lowlevel.checkpoint()


async def test_a_call_is_answered_with_the_very_result() -> None:
    async with running(child()) as it:
        assert value(await it.upstream(tool("echo", {"n": 7, "s": "ä"}))) == {"n": 7, "s": "ä"}
        [connected] = it.events.of(Connected)
        assert connected.identity.version == "2025-11-25"
        assert connected.identity.instructions == "be kind"
        assert it.upstream.status.state is LinkState.READY


async def test_an_upstreams_own_error_passes_untouched() -> None:
    async with running(child()) as it:
        failed = failure(await it.upstream(tool("fail")))
    assert (failed.error.code, failed.error.message, failed.party) == (-32042, "odd", Party.UPSTREAM)
    assert failed.error.data is not None
    assert bytes(failed.error.data) == b'{"kept": [1]}'


async def test_an_older_known_version_is_accepted() -> None:
    async with running(child("old")) as it:
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert it.events.of(Connected)[0].identity.version == "2024-11-05"


async def test_an_unknown_version_is_refused_by_name() -> None:
    async with running(child("alien")) as it:
        assert "1999-01-01" in failure(await it.upstream(tool("echo"))).error.message


async def test_r61_a_shared_link_declares_all_that_can_be_bridged() -> None:
    async with running(child()) as it:
        [initialize, *_] = value(await it.upstream(tool("heard")))
    assert initialize["params"]["capabilities"] == {
        "roots": {"listChanged": True},
        "sampling": {"tools": {}, "context": {}},
        "elicitation": {"form": {}, "url": {}},
    }
    assert initialize["params"]["protocolVersion"] == "2025-11-25"
    assert initialize["params"]["clientInfo"]["name"] == "mcproxy"


async def test_a_server_that_refuses_capabilities_of_a_newer_revision_is_told_them_without_their_parts() -> None:
    async with running(child("picky")) as it:
        refused, taken, *_ = value(await it.upstream(tool("heard")))
    assert taken["params"]["capabilities"] == {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}}
    assert taken["id"] != refused["id"]


async def test_r46_progress_is_asked_for_and_passed_to_the_caller() -> None:
    client = FakeClient()
    async with running(child()) as it:
        assert value(await it.upstream(tool("progress", client=client))) == "done"
    assert client.told == [
        ("notifications/progress", {"progress": 1}),
        ("notifications/progress", {"progress": 2}),
        ("notifications/message", {"level": "info", "data": "half way"}),
    ]


async def test_r46_a_silent_call_times_out_with_upstream_method_and_time() -> None:
    spec = child(timeouts=QUICK.model_copy(update={"idle": 0.2}))
    async with running(spec) as it:
        failed = failure(await it.upstream(tool("hang")))
        assert failed.reason is Reason.TIMEOUT
        assert re.search(r"'kid', tools/call: no answer after \d+\.\d s \(idle\)", failed.error.message)
        with anyio.fail_after(GUARD):
            while isinstance(outcome := await it.upstream(tool("heard")), Failed):
                assert outcome.reason is Reason.TIMEOUT, "the child is slow"
        heard = value(outcome)
    [hanging] = [m["id"] for m in heard if m.get("params", {}).get("name") == "hang"]
    cancelled = [m["params"]["requestId"] for m in heard if m.get("method") == "notifications/cancelled"]
    assert cancelled.count(hanging) == 1


async def test_r25_cancelling_reaches_exactly_the_one_request() -> None:
    async with running(child()) as it:
        await it.upstream(tool("echo"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.upstream, tool("hang", {"which": "first"}))
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(GUARD):
            heard = value(await it.upstream(tool("heard")))
    [cancelled] = [m for m in heard if m.get("method") == "notifications/cancelled"]
    [hanging] = [m for m in heard if m.get("params", {}).get("name") == "hang"]
    assert cancelled["params"]["requestId"] == hanging["id"]


async def test_r13_a_dying_child_fails_its_calls_with_its_stderr() -> None:
    async with running(child(), delays=lambda _: 3600) as it:
        await it.upstream(tool("echo"))
        failures = []

        async def hang() -> None:
            failures.append(failure(await it.upstream(tool("hang"))))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(GUARD):
                failures.append(failure(await it.upstream(tool("crash"))))
        for failed in failures:
            assert "status 3" in failed.error.message
            assert "last words of the child" in failed.error.message
            assert failed.reason is Reason.UNAVAILABLE
        assert len(failures) == 2
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        assert it.upstream.status.state is LinkState.BACKING_OFF
        assert it.upstream.status.stderr == ("last words of the child",)


async def test_r13_a_child_that_closes_its_output_and_lives_on_fails_its_calls() -> None:
    async with running(child(), delays=lambda _: 3600) as it:
        with anyio.fail_after(GUARD):
            failed = failure(await it.upstream(tool("close output")))
    assert "closed its output" in failed.error.message


def test_r13_a_child_inherits_nothing_but_its_stdio() -> None:
    held, lifeline = os.pipe()
    leaked, other_end = os.pipe()
    command = [sys.executable, "-I", "-S", str(REAPER), str(held), "64", "sh", "-c", "ls /proc/$$/fd"]
    ran = subprocess.run(command, pass_fds=(held, leaked, other_end), stdout=subprocess.PIPE, check=True)
    assert ran.stdout.split() == [b"0", b"1", b"2"]
    for descriptor in (held, lifeline, leaked, other_end):
        os.close(descriptor)


def test_r1_a_child_starts_however_many_files_the_gateway_has_open() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    held, lifeline = os.pipe()
    # As many connections would have it: above what select() takes.
    high = fcntl.fcntl(held, fcntl.F_DUPFD, 1500)
    command = [sys.executable, "-I", "-S", str(REAPER), str(high), "64", "echo", "started"]
    ran = subprocess.run(command, pass_fds=(high,), stdout=subprocess.PIPE)
    for descriptor in (held, high, lifeline):
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (ran.stdout, ran.returncode) == (b"started\n", 0)


@contextmanager
def room_for_files(free: int) -> Iterator[None]:
    """Lets this process open no more than `free` files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_files()) + 64, limits[1]))
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)


def open_files() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}


async def test_r16_a_child_for_which_there_are_too_few_files_says_so_and_leaves_none_open() -> None:
    async with running(child("dies-at-once"), delays=lambda _: 3600) as it:
        failure(await it.upstream(tool("echo")))
        before = open_files()
        for free in range(8):
            with room_for_files(free):
                message = failure(await it.upstream(tool("echo"))).error.message
            assert "could not be started: Too many open files" in message
            assert open_files() == before


async def test_r13_an_epitaph_quotes_the_last_child_alone() -> None:
    async with running(child("dies-at-once"), delays=lambda _: 3600) as it:
        for _ in range(2):
            message = failure(await it.upstream(tool("echo"))).error.message
            assert message.count("stillborn") == 1


async def test_r3_a_call_makes_one_attempt_at_once_while_backing_off() -> None:
    async with running(child(), delays=lambda _: 3600) as it:
        failure(await it.upstream(tool("crash")))
        assert value(await it.upstream(tool("echo", "back"))) == "back"
        assert it.upstream.status.reconnects == 1
        assert it.count("mcproxy_upstream_reconnects_total", upstream="kid") == 1


async def test_r4_a_call_that_may_have_run_is_not_sent_again() -> None:
    async with running(child()) as it:
        failed = failure(await it.upstream(tool("crash")))
        assert "unknown" in failed.error.message
        heard = value(await it.upstream(tool("heard")))
    assert not [m for m in heard if m.get("params", {}).get("name") == "crash"]


async def test_r16_junk_is_skipped_and_counted() -> None:
    async with running(child()) as it:
        assert value(await it.upstream(tool("junk"))) == "still here"
        assert it.count("mcproxy_upstream_junk_total", upstream="kid") == 2


async def test_r1_a_child_that_never_stops_babbling_slows_no_other_down() -> None:
    async with running(child()) as it, running(child()) as other:
        await other.upstream(tool("echo"))
        assert value(await it.upstream(tool("babble"))) == "blah"
        with anyio.fail_after(GUARD):
            n = 0
            while n < 100 or not it.count("mcproxy_upstream_junk_total", upstream="kid"):
                assert value(await other.upstream(tool("echo", n))) == n
                n += 1


async def test_r16_a_line_of_many_mib_arrives_whole() -> None:
    async with running(child()) as it:
        assert len(value(await it.upstream(tool("big", {"bytes": 20 * 2**20})))) == 20 * 2**20


async def test_r16_a_message_over_the_cap_fails_its_upstream_with_a_clear_error() -> None:
    async with running(child(max_message_bytes=100_000)) as it:
        failed = failure(await it.upstream(tool("big", {"bytes": 200_000})))
        assert "larger than 100000 bytes" in failed.error.message
        assert value(await it.upstream(tool("echo", "again"))) == "again"


async def test_a_malformed_answer_fails_its_call_at_once() -> None:
    async with running(child()) as it:
        assert "malformed" in failure(await it.upstream(tool("malformed"))).error.message


@pytest.mark.parametrize("kind", UNREADABLE)
async def test_an_answer_that_is_nearly_json_fails_its_call_at_once_naming_why(kind: str) -> None:
    spec = child(timeouts=QUICK.model_copy(update={"idle": 3600}))
    async with running(spec) as it:
        with anyio.fail_after(GUARD):
            failed = failure(await it.upstream(tool("raw", {"hex": UNREADABLE[kind].hex()})))
        assert "the answer is malformed" in failed.error.message
        assert value(await it.upstream(tool("echo", 1))) == 1


async def test_an_answer_behind_a_byte_order_mark_is_read() -> None:
    answer = b'\xef\xbb\xbf{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"value":7}}}'
    async with running(child()) as it:
        assert value(await it.upstream(tool("raw", {"hex": answer.hex()}))) == 7


@pytest.mark.parametrize("manner", ["mute", "dies-at-once"])
async def test_r85_what_is_no_message_on_stdout_is_in_the_reason_of_a_failed_handshake(manner: str) -> None:
    timeouts = QUICK.model_copy(update={"connect": 3}) if manner == "mute" else QUICK
    async with running(child("banner", manner, timeouts=timeouts)) as it:
        # A machine may be too slow to start the child in time, once and again.
        await it.events.until(lambda: any('"Starting up, version 1"' in e.reason for e in it.events.of(Disconnected)))


async def test_r85_the_reason_of_a_death_is_kept_until_the_next_success(tmp_path: Path) -> None:
    spec = child("dies-the-second-time", cwd=str(tmp_path))
    async with running(spec, delays=lambda _: 3600) as it:
        failure(await it.upstream(tool("crash")))
        for _ in range(2):
            said = failure(await it.upstream(tool("echo"))).error.message
            assert "another reason" in said
            assert "last words of the child" in said
        assert it.upstream.status.error is not None
        assert "last words of the child" in it.upstream.status.error
        (tmp_path / "started").unlink()
        assert value(await it.upstream(tool("echo", 1))) == 1
        assert it.upstream.status.error is None


async def test_r17_a_missing_command_is_named_with_its_path() -> None:
    spec = UpstreamSettings(
        name="kid", prefix="kid", command="no-such-server", env={"PATH": "/somewhere/bin"}, timeouts=QUICK
    )
    async with running(spec) as it:
        message = failure(await it.upstream(tool("echo"))).error.message
    assert "'no-such-server'" in message
    assert "/somewhere/bin" in message.replace("[redacted]", "/somewhere/bin")


async def test_a_missing_working_folder_is_named() -> None:
    async with running(child(cwd="/no/such/folder")) as it:
        assert "/no/such/folder" in failure(await it.upstream(tool("echo"))).error.message


async def test_a_child_gets_a_small_environment_its_own_variables_and_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", "not for children")
    async with running(child(env={"TOKEN": "abc"}, cwd=str(tmp_path))) as it:
        seen = value(await it.upstream(tool("environment")))
    assert "GATEWAY_SECRET" not in seen["environ"]
    assert seen["environ"]["TOKEN"] == "abc"
    assert seen["environ"]["PATH"] == os.environ["PATH"]
    assert seen["cwd"] == str(tmp_path)


async def test_what_a_child_says_on_stderr_is_logged_as_its_own_within_its_ration() -> None:
    complain = "import sys; sys.stderr.write(200 * 'no!\\n'); sys.stderr.flush(); sys.stdin.read()"
    spec = UpstreamSettings(
        name="loud", prefix="l", command=sys.executable, args=("-c", complain), era="legacy", stderr_lines=5
    )
    with structlog.testing.capture_logs() as logged:
        async with running(spec) as it:
            with anyio.fail_after(GUARD):
                while not it.upstream.status.stderr:
                    await anyio.lowlevel.checkpoint()
            assert it.count("mcproxy_upstream_child_starts_total", upstream="loud") == 1
    assert {entry["upstream"] for entry in logged} == {"loud"}
    said = [entry for entry in logged if entry["event"] == "stderr"]
    suppressed = sum(entry["lines"] for entry in logged if entry["event"] == "more on stderr")
    # What comes in pieces may come in two seconds.
    assert len(said) in {5, 10}
    assert len(said) + suppressed == 200


async def test_r44_a_secret_on_stderr_is_not_shown() -> None:
    spec = UpstreamSettings(
        name="kid",
        prefix="kid",
        command=sys.executable,
        args=("-c", "import os, sys; sys.exit('key is ' + os.environ['KEY'])"),
        env={"KEY": "sentinel-123456"},
        timeouts=QUICK,
    )
    async with running(spec) as it:
        message = failure(await it.upstream(tool("echo"))).error.message
        assert "key is [redacted]" in message
        assert "sentinel" not in message + str(it.upstream.status)


async def test_r44_a_secret_in_an_upstreams_own_error_is_not_shown() -> None:
    async with running(child(env={"KEY": "sentinel-123456"})) as it:
        failed = failure(await it.upstream(tool("fail", {"saying": "KEY"})))
    assert failed.error.message == "odd [redacted]"
    assert failed.error.data is not None
    assert bytes(failed.error.data) == b'{"kept": [1], "said": "odd [redacted]"}'


async def test_r11_grandchildren_that_left_the_group_end_with_the_child() -> None:
    async with running(child()) as it:
        grandchild = value(await it.upstream(tool("grandchild")))
        assert alive(grandchild)
    await gone(grandchild)


async def test_r11_a_child_deaf_to_eof_and_sigterm_is_killed() -> None:
    async with running(child("deaf-to-eof")) as it:
        pid = value(await it.upstream(tool("environment")))["pid"]
        assert alive(pid)
    await gone(pid)


GATEWAY = """
import anyio
from tests.upstream.support import child, running, tool, value

async def main():
    async with running(child("deaf-to-eof")) as it:
        pid = value(await it.upstream(tool("environment")))["pid"]
        print("PIDS", pid, value(await it.upstream(tool("grandchild"))), flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


async def test_r11_nothing_is_left_after_a_sigkill_of_the_gateway() -> None:
    async with await anyio.open_process([sys.executable, "-c", GATEWAY], stderr=None) as gateway:
        assert gateway.stdout is not None
        said = b""
        with anyio.fail_after(GUARD):
            while b"PIDS" not in said or not said.endswith(b"\n"):
                said += await gateway.stdout.receive()
        pids = [int(word) for word in said.rpartition(b"PIDS")[2].split()]
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
        gateway.kill()
    for pid in pids:
        await gone(pid)


async def test_r11_nothing_of_its_session_is_left_after_a_sigkill_of_the_reaper() -> None:
    async with running(child(), delays=lambda _: 3600) as it:
        reaper = value(await it.upstream(tool("environment")))["reaper"]
        kin = value(await it.upstream(tool("kin")))
        assert alive(kin)
        os.kill(reaper, signal.SIGKILL)
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        await gone(kin)


async def test_a_child_that_stops_reading_is_given_up_and_blocks_no_other() -> None:
    spec = child(timeouts=UpstreamTimeouts(connect=GUARD, idle=2, total=GUARD, shutdown=0.2))
    async with running(spec, delays=lambda _: 3600) as it, running(child()) as other:
        await it.upstream(tool("stop reading"))  # which is answered, if the child is not slow
        failures = []

        async def flood() -> None:
            failures.append(failure(await it.upstream(tool("echo", "x" * 2**20))))

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(flood)
            assert value(await other.upstream(tool("echo", "fine"))) == "fine"
        assert len(failures) == 4
        await it.events.until(lambda: bool(it.events.of(Disconnected)))
        assert "did not read" in it.events.of(Disconnected)[0].reason


async def test_what_a_child_announces_is_published() -> None:
    async with running(child()) as it:
        await it.upstream(tool("announce", {"method": "notifications/resources/list_changed"}))
        await it.upstream(tool("announce afterwards", {"method": "notifications/odd", "params": {"a": 1}}))
        await it.events.until(lambda: len(it.events.of(UpstreamChanged)) == 4)
        *lists, notice = [event.change for event in it.events.of(UpstreamChanged)]
    assert lists == [ListChanged(Kind.RESOURCES), ListChanged(Kind.TEMPLATES), ListChanged(Kind.SKILLS)]
    assert isinstance(notice, Notice)
    assert notice.method == "notifications/odd"


async def test_r26_what_may_be_of_a_call_reaches_no_other_client() -> None:
    one, two = FakeClient(), FakeClient()
    odd = {"method": "notifications/odd", "params": {"a": 1}}
    async with running(child()) as it:
        await it.upstream(tool("announce", odd, client=one))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.upstream, tool("hang", client=two))
            await anyio.wait_all_tasks_blocked()
            await it.upstream(tool("announce", odd, client=one))
            tasks.cancel_scope.cancel()
        assert it.count("mcproxy_upstream_unattributed_total", upstream="kid", method="unknown") == 1
        assert it.events.of(UpstreamChanged) == []
    assert (one.told, two.told) == ([("notifications/odd", {"a": 1})], [])


VISIT = {"mode": "url", "elicitationId": "e", "url": "https://up.example/c", "message": "Connect"}
COMPLETE: dict[str, Any] = {"method": "notifications/elicitation/complete", "params": {"elicitationId": "e"}}


async def test_r26_that_a_visit_is_over_is_told_to_the_client_alone_that_was_asked_to_visit() -> None:
    one, two = answering({"action": "accept"}), FakeClient()
    ask = tool("ask", {"key": "q", "method": "elicitation/create", "params": VISIT}, client=one, session="1")
    async with running(child()) as it:
        await it.upstream(ask)
        await it.upstream(tool("announce", COMPLETE, client=two, session="2"))
        await it.upstream(tool("announce afterwards", COMPLETE, client=two, session="2"))
        await it.upstream(tool("echo"))
        assert it.count("mcproxy_upstream_unattributed_total", upstream="kid", method=COMPLETE["method"]) == 1
        assert it.events.of(UpstreamChanged) == []
    assert isinstance(ask.listener, FakeListener)
    assert [change.method for change in ask.listener.told if isinstance(change, Notice)] == [COMPLETE["method"]]
    assert two.told == []


async def test_r60_one_question_too_many_is_answered_busy() -> None:
    client = answering({"ok": True})
    client.may_answer = anyio.Event()
    async with running(child(max_in_flight=2)) as it, anyio.create_task_group() as tasks:
        tasks.start_soon(it.upstream, tool("ask twice more", QUESTION, client=client))
        await client.asked.wait()
        reply = value(await it.upstream(tool("await answer", {"id": "third"}, client=client)))
        client.may_answer.set()
        tasks.cancel_scope.cancel()
    assert "busy" in reply["error"]["message"]


QUESTION = {"key": "q", "method": "sampling/createMessage", "params": {"maxTokens": 1, "odd": [1]}}


async def test_r26_a_question_goes_to_the_client_whose_call_runs() -> None:
    client = answering({"role": "assistant", "odd": {"kept": 1.0}})
    async with running(child()) as it:
        reply = value(await it.upstream(tool("ask", QUESTION, client=client)))
    assert reply["result"] == {"role": "assistant", "odd": {"kept": 1.0}}
    assert client.questions[0].method == "sampling/createMessage"
    assert bytes(client.questions[0].params["odd"]) == b"[1]"


async def test_r61_a_clients_refusal_reaches_the_upstream_with_code_and_data() -> None:
    async with running(child()) as it:
        reply = value(await it.upstream(tool("ask", QUESTION, client=refusing())))
    assert reply["error"]["code"] == -32600
    assert reply["error"]["data"] == {"kept": True}


async def test_r26_a_question_that_two_clients_may_have_caused_is_refused_with_the_remedy() -> None:
    other = answering({})
    asker = answering({})
    async with running(child()) as it:
        await it.upstream(tool("echo"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.upstream, tool("hang", client=other))
            await anyio.wait_all_tasks_blocked()
            reply = value(await it.upstream(tool("ask", QUESTION, client=asker)))
            tasks.cancel_scope.cancel()
        assert reply["error"]["code"] == -32600
        assert "connection: session" in reply["error"]["message"]
        assert not asker.questions
        assert not other.questions
        assert it.count("mcproxy_upstream_unattributed_total", upstream="kid", method="sampling/createMessage") == 1


async def test_r26_two_calls_of_one_session_are_one_client() -> None:
    client = answering({"ok": True})
    async with running(child()) as it:
        await it.upstream(tool("echo"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.upstream, tool("hang", client=client, session="s"))
            await anyio.wait_all_tasks_blocked()
            reply = value(await it.upstream(tool("ask", QUESTION, client=client, session="s")))
            tasks.cancel_scope.cancel()
    assert reply["result"] == {"ok": True}


async def test_a_question_of_no_known_method_is_unknown() -> None:
    async with running(child()) as it:
        reply = value(await it.upstream(tool("ask", {"key": "q", "method": "tasks/odd"})))
    assert reply["error"]["code"] == -32601


async def test_a_ping_of_an_upstream_is_answered_without_its_client() -> None:
    async with running(child()) as it:
        reply = value(await it.upstream(tool("ask", {"key": "q", "method": "ping"})))
    assert reply["result"] == {}


async def test_a_question_that_the_upstream_withdraws_is_taken_back_from_the_client() -> None:
    client = FakeClient()
    async with running(child()) as it:

        async def withdraw() -> None:
            await client.asked.wait()
            await it.upstream(tool("withdraw"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(withdraw)
            assert value(await it.upstream(tool("ask and withdraw", client=client))) == "withdrawn"
        assert value(await it.upstream(tool("echo", 1))) == 1
    assert client.withdrawn == 1


async def test_r60_roots_asked_for_outside_any_call_are_the_configured_ones() -> None:
    async with running(child("asks-for-roots", roots=("file:///a",))) as it:
        with anyio.fail_after(GUARD):
            while not (answers := [m for m in value(await it.upstream(tool("heard"))) if m.get("id") == "roots"]):
                pass
    assert answers == [{"jsonrpc": "2.0", "id": "roots", "result": {"roots": [{"uri": "file:///a"}]}}]


async def test_r46_while_a_client_thinks_its_call_is_not_idle() -> None:
    with anyio.fail_after(GUARD):
        # A child may be slower than that by itself, before it asks or once it is answered.
        while isinstance(outcome := await thought_about(), Failed):
            assert outcome.reason is Reason.TIMEOUT
    assert value(outcome)["result"] == {"action": "accept"}


async def thought_about() -> Outcome:
    """What a call comes to whose client thinks for as long as its idle bound."""
    client = FakeClient({"action": "accept"})
    spec = child(timeouts=QUICK.model_copy(update={"idle": 0.3}))
    async with running(spec) as it, anyio.create_task_group() as tasks:

        async def answer_late() -> None:
            await client.asked.wait()
            failed = failure(await it.upstream(tool("hang", client=client)))  # as long as the idle bound
            assert failed.reason is Reason.TIMEOUT
            client.may_answer.set()

        tasks.start_soon(answer_late)
        outcome = await it.upstream(tool("ask", {"key": "q", "method": "elicitation/create"}, client=client))
        tasks.cancel_scope.cancel()
    return outcome


async def test_a_notification_is_sent_on_as_one() -> None:
    async with running(child()) as it:
        await it.upstream(request("notifications/roots/list_changed"))
        heard = value(await it.upstream(tool("heard")))
    assert {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"} in heard


def test_the_reaper_exits_as_its_command_did() -> None:
    held, lifeline = os.pipe()
    for script, status in (("exit 7", 7), ("kill -SEGV $$", -signal.SIGSEGV)):
        command = [sys.executable, "-I", "-S", str(REAPER), str(held), "64", "sh", "-c", script]
        assert subprocess.run(command, pass_fds=(held,), check=False).returncode == status
    os.close(held)
    os.close(lifeline)


async def test_a_child_is_started_and_ended_with_little_work() -> None:
    before = cpu_of_children()
    async with running(child()) as it:
        await it.upstream(tool("echo"))
    assert cpu_of_children() - before < 5


def cpu_of_children() -> float:
    """The seconds of work of all children that have ended: a machine that is busy with others adds none."""
    times = os.times()
    return times.children_user + times.children_system


async def test_r46_a_list_has_a_bound_of_its_own() -> None:
    spec = child("slow-lists", timeouts=QUICK.model_copy(update={"list": 0.1}))
    async with running(spec) as it:
        failed = failure(await it.upstream(request("tools/list")))
    assert failed.reason is Reason.TIMEOUT
    assert "tools/list" in failed.error.message


def of_principal(name: str, call: Call) -> Call:
    return replace(call, caller=replace(call.caller, principal=Principal(name)))


@pytest.mark.parametrize("after", ["a cancel", "the answer", "nothing: ann's call runs on"])
async def test_r77_no_question_of_one_principal_reaches_another_on_a_shared_pipe(after: str) -> None:
    ann, bob = answering({"roots": ["ann's"]}), answering({"roots": ["bob's"]})
    async with running(child()) as it, anyio.create_task_group() as tasks:
        await it.upstream(request("tools/list"))
        match after:
            case "a cancel":
                scope = anyio.CancelScope()
                tasks.start_soon(_cancelled_soon, it, of_principal("ann", tool("hang", client=ann)), scope)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
            case "the answer":
                await it.upstream(of_principal("ann", tool("echo", client=ann)))
            case _:
                tasks.start_soon(it.upstream, of_principal("ann", tool("hang", client=ann)))
                await anyio.wait_all_tasks_blocked()
        asked = tool("ask", {"key": "q", "method": "sampling/createMessage"}, client=bob)
        answer = value(await it.upstream(of_principal("bob", asked)))
        assert "connection: principal" in answer["error"]["message"]
        assert bob.questions == ann.questions == []
        assert it.upstream.status.asks
        assert it.upstream.status.asks_while_shared
        tasks.cancel_scope.cancel()


async def test_r77_a_log_line_after_a_call_is_for_its_principal_alone_and_for_none_once_there_are_two() -> None:
    line = {"method": "notifications/message", "params": {"level": "info", "data": "ann's"}}
    async with running(child()) as it:
        await it.upstream(of_principal("ann", tool("announce afterwards", line)))
        await it.events.until(lambda: bool(it.events.of(UpstreamChanged)))
        [said] = [event.change for event in it.events.of(UpstreamChanged)]
        assert isinstance(said, Notice)
        assert said.principal == "ann"
        bob = FakeClient()
        await it.upstream(of_principal("bob", tool("announce afterwards", line, client=bob)))
        await it.upstream(of_principal("bob", tool("announce", line, client=bob)))
        assert bob.told == []
        assert len(it.events.of(UpstreamChanged)) == 1
        assert it.count("mcproxy_upstream_unattributed_total", upstream="kid", method="notifications/message") == 2


async def _cancelled_soon(it: Running, call: Call, scope: anyio.CancelScope) -> None:
    with scope:
        await it.upstream(call)


@pytest.mark.parametrize("descriptor", [1, 2])
async def test_all_that_a_child_writes_shows_that_it_lives(descriptor: int) -> None:
    code = f"import os, sys; sys.stdin.readline(); os.write({descriptor}, b'busy\\n'); sys.stdin.readline()"
    spec = UpstreamSettings(name="kid", prefix="kid", command=sys.executable, args=("-c", code), timeouts=QUICK)
    with anyio.fail_after(GUARD):
        async with started(LinkContext(spec, Metrics(), print)) as pipe, task_group() as tasks:
            tasks.start_soon(pipe.read, lambda _: None)
            assert pipe.heard == 0
            await pipe.send(Notification("notifications/initialized", {}))
            while not pipe.heard:
                await anyio.lowlevel.checkpoint()
