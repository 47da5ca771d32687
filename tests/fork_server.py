"""A process that has imported what many programs need, and forks them: each starts in a tenth of the time.

`python -m tests.fork_server SOCKET MODULE...` imports the modules. Each message of the socket is then a command line,
`[module, *arguments]` in JSON with an environment, and has three files with it, the program's standard streams; the
answer is its process id. In the fork the module runs as by `python -m`. Its parent is at once the process above that
adopts orphans (`tests.processes`), as if that had started it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import socket
import sys

MAX_MESSAGE = 2**20
STREAMS = 3


def main() -> None:
    number, *modules = sys.argv[1:]
    connection = socket.socket(fileno=int(number))
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    # What is imported stays for good; looked through, it would also be copied.
    gc.freeze()
    gc.enable()
    if wanted := serve(connection):
        sys.argv = wanted
        runpy.run_module(wanted[0], run_name="__main__", alter_sys=True)


def serve(connection: socket.socket) -> list[str] | None:
    """Returns in each fork, with its command line, and at the end of the connection with None."""
    while True:
        message, files, _, _ = socket.recv_fds(connection, MAX_MESSAGE, STREAMS)
        if not message:
            return None
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            parent = os.pidfd_open(os.getpid())
            if child := os.fork():
                os.write(writing, str(child).encode())
                os._exit(0)
            select.select([parent], [], [])
            for each in (parent, reading, writing, connection.detach()):
                os.close(each)
            return become(json.loads(message), files)
        os.close(writing)
        os.waitpid(between, 0)
        connection.send(os.read(reading, 64))
        for each in (reading, *files):
            os.close(each)


def become(wanted: dict[str, object], files: list[int]) -> list[str]:
    """Has this process the streams and the environment that are wanted; returns its command line."""
    for target, source in enumerate(files):
        os.dup2(source, target)
        os.close(source)
    command, environment = wanted["command"], wanted["environment"]
    assert isinstance(command, list)
    assert isinstance(environment, dict)
    os.environ.clear()
    os.environ.update(environment)
    return command


if __name__ == "__main__":
    main()
