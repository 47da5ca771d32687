"""The program: `mcproxy`, and `python -m mcproxy`."""

import os
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line. Ctrl-C exits without a traceback from the start: imports take most of that."""
    try:
        from mcproxy.cli.commands import main as run

        run()
    except KeyboardInterrupt:
        os._exit(130)  # `ExitCode.INTERRUPTED`, which may not be imported yet


if __name__ == "__main__":
    main()
