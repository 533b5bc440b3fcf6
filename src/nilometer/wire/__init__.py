"""Kafka's wire protocol: frames, API versions, record batches as views on bytes.

Message schemas come from kio (``messages`` is the only door to it); record batches are our own
(``record_batch``, ``records``), since the hot path never looks inside them. Knows nothing of disks,
sockets or clusters.
"""

from __future__ import annotations

import importlib
import sys


def _import_kio_alone() -> None:
    """kio imports hypothesis wherever that is installed, to offer it strategies: a quarter of the time that a
    process takes to start, for tests that are not run in it."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # "not there", to whoever asks
    try:
        importlib.import_module("kio.static.primitive")
    finally:
        del sys.modules["hypothesis"]


_import_kio_alone()
