"""The marker file of a clean shutdown of a log directory (``.kafka_cleanshutdown``).

The marker is written after every log was flushed and closed, and removed before the first log is
opened again: while it exists, all files can be trusted. It contains the broker epoch, from which the
controller knows whether a returning broker has all records that it acknowledged (KIP-966).
"""

from __future__ import annotations

import json
from typing import Any

from nilometer.runtime import Disk

VERSION = 0
UNKNOWN_BROKER_EPOCH = -1


def write(disk: Disk, path: str, broker_epoch: int) -> None:
    """Write and sync the marker. May block. Raises OSError."""
    content = {"version": VERSION, "brokerEpoch": broker_epoch}
    disk.replace_file(path, json.dumps(content, separators=(",", ":")).encode())


def read_broker_epoch(disk: Disk, path: str) -> int | None:
    """Return the broker epoch in the marker; -1 if the marker has none, None if there is no marker."""
    try:
        content = disk.read_file(path)
    except FileNotFoundError:
        return None
    try:
        fields: dict[str, Any] = json.loads(content)
        return int(fields["brokerEpoch"])
    except (ValueError, TypeError, KeyError):
        return UNKNOWN_BROKER_EPOCH
