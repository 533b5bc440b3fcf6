"""The marker of a clean shutdown (``.kafka_cleanshutdown``) and the lock file of a log directory.

The marker is written after every log was flushed and closed, and removed before the first log is
opened again: while it exists, all files can be trusted. It holds the broker epoch, from which the
controller knows whether a returning broker has all records it acknowledged (KIP-966).
"""

from __future__ import annotations

import json
from typing import Any

from nilometer.runtime import Disk

VERSION = 0
UNKNOWN_BROKER_EPOCH = -1


def write(disk: Disk, path: str, broker_epoch: int) -> None:
    """May stall: the marker is synced."""
    content = {"version": VERSION, "brokerEpoch": broker_epoch}
    disk.replace_file(path, json.dumps(content, separators=(",", ":")).encode())


def read_broker_epoch(disk: Disk, path: str) -> int | None:
    """The broker epoch of the last clean shutdown; -1 for a marker without it, None without a marker."""
    try:
        content = disk.read_file(path)
    except FileNotFoundError:
        return None
    try:
        fields: dict[str, Any] = json.loads(content)
        return int(fields["brokerEpoch"])
    except (ValueError, TypeError, KeyError):
        return UNKNOWN_BROKER_EPOCH
