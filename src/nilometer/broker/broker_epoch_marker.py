"""Which life of this broker a data folder was last used by, and in which run of the machine.

A process that was killed has lost nothing, as long as the machine ran on: what it wrote is in the page cache
or on the device. So a broker that finds the marker of its last registered life from this same run of the
machine may say that this life's end lost nothing, and keeps its place as eligible leader (KIP-966), as after
a clean stop. After a power cut the run is another, and it may not.

Written once a registration is folded, before clients are served; never by a life that was not registered.
"""

from __future__ import annotations

import msgspec

from nilometer.runtime import Disk

NAME = "last-registered-life"
_VERSION = 1


class _Marker(msgspec.Struct):
    version: int
    broker_epoch: int
    boot_id: str


def write(disk: Disk, folder: str, broker_epoch: int, *, may_have_lost_records: bool = False) -> None:
    """``may_have_lost_records``: as after :func:`mark_possible_loss`. May stall. Raises OSError."""
    marker = _Marker(_VERSION, broker_epoch, "" if may_have_lost_records else disk.boot_id())
    disk.replace_file(f"{folder}/{NAME}", msgspec.json.encode(marker))


def mark_possible_loss(disk: Disk, folder: str) -> None:
    """From now on nobody may say that the marked life lost nothing. May stall.

    Raises OSError; where the disk is only full, the marker is gone then, which says as little.
    """
    marker = _read(disk, folder)
    if marker is not None:
        marker.boot_id = ""
        try:
            disk.replace_file(f"{folder}/{NAME}", msgspec.json.encode(marker))
        except OSError:
            disk.remove(f"{folder}/{NAME}")
            raise


def read_lossless_broker_epoch(disk: Disk, folder: str) -> int | None:
    """The broker epoch of the last registered life, if the machine has not stopped since; else None.

    Raises OSError.
    """
    boot_id = disk.boot_id()
    marker = _read(disk, folder)
    return marker.broker_epoch if boot_id and marker is not None and marker.boot_id == boot_id else None


def read_broker_epoch(disk: Disk, folder: str) -> int | None:
    """The broker epoch of the last registered life, however it ended. Raises OSError."""
    marker = _read(disk, folder)
    return None if marker is None else marker.broker_epoch


def _read(disk: Disk, folder: str) -> _Marker | None:
    try:
        marker = msgspec.json.decode(disk.read_file(f"{folder}/{NAME}"), type=_Marker)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None  # none, or damaged: then nothing is known, which is the safe side
    return marker if marker.version == _VERSION else None
