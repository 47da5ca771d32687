"""The upstream of the benchmark as a child over stdio: `python -m benchmarks.child CORE [TOOLS]`.

It leaves the core of the proxy that started it: what it uses is no cost of the proxy's.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

from benchmarks.answers import Listening, Message, Reply, Silence, Stepwise, Watching, Whole, read, reply


def bodies(said: Reply) -> tuple[bytes, ...]:
    match said:
        case Whole(body=body) | Watching(body=body) | Listening(first=body):
            return (body,)
        case Stepwise(bodies=several):
            return several
        case Silence():
            return ()


def serve(lines: BinaryIO, out: BinaryIO, tools: int) -> None:
    for line in lines:
        message: Message = read(line)
        for body in bodies(reply(message, tools)):
            out.write(body + b"\n")
        out.flush()


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[1])})
    serve(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
