"""The start of the `nilometer` process: Ctrl-C ends it without a traceback, whatever it is importing.

Ctrl-C raises KeyboardInterrupt only while a command runs, which closes what it opened. Before and after that
there is nothing to close, and Ctrl-C ends the process as it ends a program that does not handle it.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line and exit; the entry point of the console script."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as a shell has it for work in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from nilometer.cli.main import main

    main()


if __name__ == "__main__":
    main()
