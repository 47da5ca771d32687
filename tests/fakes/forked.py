"""A program that tells how it was started, and ends with status 3."""

import json
import os
import sys

if __name__ == "__main__":
    print(json.dumps([sys.argv[1:], dict(os.environ), os.getppid()]), file=sys.stderr)
    sys.exit(3)
