"""A log file of bounded size, which the descriptors of standard output and error follow."""

from __future__ import annotations

import logging.handlers
import os

STANDARD_STREAMS = (1, 2)


class BoundedLogFile(logging.handlers.RotatingFileHandler):
    """A log file that is renamed at ``max_bytes``, with ``files`` files in all, the oldest in ``FILE.<n>``.

    If standard output and error go to the same file, as `nilometer up` starts a broker, they follow it: what
    an interpreter or a library writes there is in the current file, and no renamed file grows.
    """

    def __init__(self, path: str, max_bytes: int, files: int) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=files - 1, encoding="utf-8")
        opened = os.fstat(self._descriptor())
        self._followers = [number for number in STANDARD_STREAMS if _is_open_on(number, opened)]

    def doRollover(self) -> None:
        super().doRollover()
        for number in self._followers:
            os.dup2(self._descriptor(), number)

    def _descriptor(self) -> int:
        assert self.stream is not None, "the file is opened at once"
        return self.stream.fileno()


def _is_open_on(descriptor: int, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file)
    except OSError:  # it is closed
        return False
