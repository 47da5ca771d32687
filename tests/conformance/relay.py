"""The program that the conformance suite starts as its client. The test, which it tells of it, does the client's work.

`python -I -S relay.py SOCKET URL` sends the suite's URL and context to SOCKET, and ends when the connection does.
"""

import json
import os
import socket
import sys

path, url = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as test:
    test.connect(path)
    test.sendall(json.dumps({"url": url, "context": os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")}).encode())
    test.recv(1)
