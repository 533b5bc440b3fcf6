"""Kafka's wire protocol: frames, API versions, record batches as views on bytes.

Message schemas come from the library kio; record batches are implemented here (``record_batch``,
``records``), since produce and fetch handle them without decoding. No disk, no socket, no cluster state.
"""

from __future__ import annotations

import importlib
import sys


def _import_kio_alone() -> None:
    """Import kio without hypothesis: kio imports it, for tests only, if it is installed, which would take a
    quarter of a process's start time."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # looks like "not installed"
    try:
        importlib.import_module("kio.static.primitive")
    finally:
        del sys.modules["hypothesis"]


_import_kio_alone()
