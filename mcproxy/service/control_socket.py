"""The control socket, by which commands reach a running gateway: one for each process, for its user alone.

Its name begins with a digest of the configuration's path, by which commands find it. Whoever may open it acts as an
operator, so it lies in a folder of the user's, whose permissions decide. Serves nothing itself.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from mcproxy.service import state

log = structlog.get_logger()

MAX_FOLDER: Final = 70
"""Bytes of the folder's path: systems allow 104 or 108 for the socket's, whose name takes up to 30."""


def socket_folder() -> Path:
    """Where this user's sockets are: in XDG_RUNTIME_DIR, else beside the state, else in the folder of temporary files.

    The last one also if the path would be too long for a socket.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    with suppress(RuntimeError):
        found = Path(runtime) / "mcproxy" if runtime else state.state_folder() / "run"
        if len(os.fsencode(found)) <= MAX_FOLDER:
            return found
    return Path(tempfile.gettempdir()) / f"mcproxy-{os.geteuid()}"


def live_sockets(configuration: Path) -> list[Path]:
    """The sockets of gateways that run with a configuration, latest first; removes sockets of dead ones.

    To root, which may open any socket, a folder may belong to another user: that of a service.
    """
    try:
        _check_private(socket_folder(), of_any_user=os.geteuid() == 0)
    except OSError:
        return []
    found = socket_folder().glob(f"{_digest(configuration)}.*.sock")
    alive = [path for path in found if _is_served(path)]
    return sorted(alive, key=lambda path: path.stat().st_mtime, reverse=True)


@contextmanager
def bound(configuration: Path) -> Iterator[socket.socket | None]:
    """A listening socket of this process, removed afterwards; None, with a warning, if there can be none."""
    listener = path = None
    try:
        live_sockets(configuration)  # removes what others left behind
        path = socket_folder() / f"{_digest(configuration)}.{os.getpid()}.sock"
        listener = _listening(path)
    except (OSError, AttributeError) as error:  # a system may have no Unix sockets
        log.warning("commands cannot reach this gateway", why=str(error), remedy="set XDG_RUNTIME_DIR")
    try:
        yield listener
    finally:
        if listener is not None and path is not None:
            listener.close()
            with suppress(OSError):
                path.unlink()


def _listening(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_private(path.parent)
    with suppress(FileNotFoundError):
        path.unlink()  # of an earlier process with the same number
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(16)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _check_private(path: Path, *, of_any_user: bool = False) -> None:
    """Raises OSError where another than the folder's user could put a socket into it, or open one in it.

    `of_any_user`: it may be another user's, where nobody else can have made it, as anyone can below `/tmp`.
    """
    found = path.lstat()
    is_own = found.st_uid == os.geteuid() or (of_any_user and not path.parent.stat().st_mode & 0o022)
    if not stat.S_ISDIR(found.st_mode) or not is_own or found.st_mode & 0o077:
        raise OSError(f"{path} is not for this user alone: chmod 700")


def _is_served(path: Path) -> bool:
    """Whether a process listens at a socket; removes the socket if none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            with suppress(OSError):
                path.unlink()
            return False
        except OSError:
            return False
    return True


def _digest(configuration: Path) -> str:
    return hashlib.sha256(os.fsencode(configuration.resolve())).hexdigest()[:16]
