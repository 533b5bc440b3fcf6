"""``python -m support.crash_images.recorded_broker``: a broker process whose writes are recorded.

Arguments as for ``python -m nilometer.broker``; the recorded folder is that of ``log.dirs``, which must be
empty. Beside it, ``marks`` is a named pipe, each line of which is a mark, as a JSON list; ``recording`` is
written when the broker has stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

from nilometer.broker.process import run_broker
from nilometer.runtime import Runtime
from support.crash_images.recording import RecordingDisk


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--override", action="append", default=[])
    parser.add_argument("--ready-fd", type=int)
    arguments = parser.parse_args()
    overrides = dict(item.split("=", 1) for item in arguments.override)
    folder = Path(overrides["log.dirs"])
    disk = RecordingDisk(folder)
    threading.Thread(target=_take_marks, args=(disk, folder.with_name("marks")), daemon=True).start()
    code = run_broker(
        None, overrides, arguments.ready_fd, make_runtime=lambda: replace(Runtime.system(), disk=disk)
    )
    disk.recording.save(folder.with_name("recording"))
    return code


def _take_marks(disk: RecordingDisk, path: Path) -> None:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            disk.mark(*json.loads(line))


if __name__ == "__main__":
    sys.exit(main())
