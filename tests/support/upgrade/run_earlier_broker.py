"""``python run_earlier_broker.py FOLDER …``: ``python -m nilometer.broker …`` with the package in FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    folder = Path(sys.argv.pop(1))
    sys.path.insert(0, str(folder))
    import nilometer
    from nilometer.broker.__main__ import main as run

    if not Path(nilometer.__file__).is_relative_to(folder):
        raise RuntimeError(f"{nilometer.__file__} is not the package in {folder}")
    return run()


if __name__ == "__main__":
    sys.exit(main())
