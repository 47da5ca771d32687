"""Runs one command and ends with all processes that it started: `python -I -S reaper.py LIFELINE FILES COMMAND...`.

Stands between the gateway and a child that speaks over stdio, and touches neither stdin, stdout nor stderr. It adopts
the processes that the command leaves orphaned (PR_SET_CHILD_SUBREAPER), so that it finds what `npx` and `uvx` start.
LIFELINE is a pipe that only the gateway holds open: when it closes, by intent or because the gateway was killed, all is
killed at once. PR_SET_PDEATHSIG alone could not do this: it reaches the direct child only, and here it covers the one
case left, the death of this process. SIGTERM is passed on to the command's process group. Exits as the command did.
FILES is the command's soft limit of open files.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NOT_FOUND = 127


def main(arguments: list[str]) -> None:
    """Runs the command and ends this process as the command ended; never returns.

    `arguments` are those after the script's name.
    """
    lifeline, files, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    os.set_inheritable(lifeline, False)
    _close_all_but_stdio_and(lifeline)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeup = _wake_on(signal.SIGCHLD, signal.SIGTERM)
    child = _start(command, files)
    _release_stdio()
    status = _watch(child, lifeline, wakeup)
    _kill_all(child)
    _exit_like(status)


def _close_all_but_stdio_and(lifeline: int) -> None:
    """Closes inherited descriptors.

    Some event loops leak the other ends of the command's pipes into this process; while open, they hold the pipes open.
    """
    os.closerange(3, lifeline)
    os.closerange(lifeline + 1, os.sysconf("SC_OPEN_MAX"))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _wake_on(*signals: signal.Signals) -> int:
    """A file descriptor that yields one byte, the signal's number, for each signal that arrives."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    return reader


def _start(command: list[str], files: int) -> int:
    reaper = os.getpid()
    child = os.fork()
    if child:
        _lead_group(child)
        return child
    try:
        _lead_group(0)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != reaper:
            os._exit(NOT_FOUND)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and exec would pass that on
            signal.signal(ignored, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        os.execvp(command[0], command)  # noqa: S606  no shell: that is the point
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    os._exit(NOT_FOUND)


def _lead_group(pid: int) -> None:
    with contextlib.suppress(OSError):  # parent and child both do this; the other was faster
        os.setpgid(pid, 0)


def _release_stdio() -> None:
    """Closes stdio; else neither the gateway nor the command would see an end-of-file when the other closes its end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def _watch(child: int, lifeline: int, wakeup: int) -> int:
    """Returns the command's wait status; that of SIGKILL once the lifeline closes."""
    poll = select.poll()  # select() takes no descriptor above 1023, and a busy gateway's lifeline has one
    poll.register(lifeline, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if lifeline in ready:
            return signal.SIGKILL
        if signal.SIGTERM in os.read(wakeup, 4096):
            _signal_group(child, signal.SIGTERM)
        status = _reap(child)
        if status is not None:
            return status


def _reap(child: int) -> int | None:
    """Reaps all dead children; returns the command's wait status if it is one of them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status


def _kill_all(child: int) -> None:
    """Kills until no child is left: children of a killed process are adopted here."""
    _signal_group(child, signal.SIGKILL)
    while True:
        for pid in _children():
            _signal(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return []
    return [pid for pid in pids if _parent(pid) == os.getpid()]


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _exit_like(status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main(sys.argv[1:])
