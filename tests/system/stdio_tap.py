"""A tap between a client and a server over stdio: `python -m tests.system.stdio_tap LOG COMMAND...`.

Everything passes unchanged and is written down first, as JSON lines of `[party, line]`. Uses the standard library
alone, since it is started as often as a client is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO


def main(log: str, *command: str) -> int:
    lock = threading.Lock()
    with open(log, "w") as file, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def note(party: str, line: bytes) -> None:
            with lock:
                print(json.dumps([party, line.decode()]), file=file, flush=True)

        inward = (sys.stdin.buffer, child.stdin, lambda line: note("sent", line))
        threading.Thread(target=_pass_on, args=inward, daemon=True).start()
        _pass_on(child.stdout, sys.stdout.buffer, lambda line: note("received", line))
        return child.wait()


def _pass_on(source: IO[bytes], sink: IO[bytes], note: Callable[[bytes], None]) -> None:
    for line in source:
        note(line)
        sink.write(line)
        sink.flush()
    sink.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
