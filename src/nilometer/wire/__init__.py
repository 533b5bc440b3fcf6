"""Kafka's wire protocol: frames, API versions, record batches as views on bytes.

Message schemas come from kio (only ``messages`` imports it); record batches are implemented here
(``record_batch``, ``records``), since the hot path never decodes them. Knows nothing of disks,
sockets or clusters.
"""

from __future__ import annotations

import importlib
import sys


def _import_kio_alone() -> None:
    """Import kio without hypothesis, which it imports where that is installed, only for tests: that would
    take a quarter of a process's start time."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # looks like "not installed"
    try:
        importlib.import_module("kio.static.primitive")
    finally:
        del sys.modules["hypothesis"]


_import_kio_alone()
