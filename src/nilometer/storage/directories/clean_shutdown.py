"""The marker of an orderly stop (``.kafka_cleanshutdown``) and the lock file of a log directory.

The marker is written after every log was flushed and closed, and removed before the first log is
opened again: while it lies there, all files can be trusted. It carries the broker epoch, by which the
controller learns whether a returning broker kept its tail (KIP-966).
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
    """The broker epoch of the last orderly stop; -1 for a marker that does not tell, None without one."""
    try:
        content = disk.read_file(path)
    except FileNotFoundError:
        return None
    try:
        fields: dict[str, Any] = json.loads(content)
        return int(fields["brokerEpoch"])
    except (ValueError, TypeError, KeyError):
        return UNKNOWN_BROKER_EPOCH
