"""``python -m nilometer.broker``: one broker process, with as few imports as it can start with."""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nilometer.broker", description="Run one broker.")
    parser.add_argument("--config", type=Path, help="a server.properties file")
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--ready-fd", type=int, help="where to write host:port once ready")
    parser.add_argument("--status-file", type=Path, help="where to write why clients are not served")
    arguments = parser.parse_args()
    overrides: dict[str, str] = {}
    for item in arguments.override:
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            parser.error(f"--override takes KEY=VALUE, not {item!r}")
        overrides[key.strip()] = value.strip()
    # What an import creates stays: garbage collections meanwhile find nothing, and take a tenth of its time.
    gc.disable()
    from nilometer.broker.process import run_broker

    gc.freeze()
    gc.enable()
    return run_broker(arguments.config, overrides, arguments.ready_fd, arguments.status_file)


if __name__ == "__main__":
    sys.exit(main())
