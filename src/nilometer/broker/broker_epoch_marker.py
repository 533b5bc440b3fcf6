"""The marker of the last registered broker epoch that used a log directory, and of that boot of the machine.

A process that was killed has lost no records if the machine kept running: what it wrote is in the page cache
or on the device. So a broker that finds its last registered broker epoch with the current boot id may claim
that this incarnation lost no records, and stays an eligible leader (KIP-966), as after a clean shutdown.
After a power cut the boot id differs, and it may not.

Written once a registration is folded, before clients are served; never by an incarnation that was not
registered.
"""

from __future__ import annotations

import msgspec

from nilometer.runtime import Disk

NAME = "last-registered-life"  # codespell:ignore
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
    """From now on the marked broker epoch may no longer be claimed to have lost no records. May stall.

    Raises OSError; where the disk is only full, the marker is removed then, which has the same effect.
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
    """The last registered broker epoch, if the machine has not stopped since; else None.

    Raises OSError.
    """
    boot_id = disk.boot_id()
    marker = _read(disk, folder)
    return marker.broker_epoch if boot_id and marker is not None and marker.boot_id == boot_id else None


def read_broker_epoch(disk: Disk, folder: str) -> int | None:
    """The last registered broker epoch, however that incarnation ended. Raises OSError."""
    marker = _read(disk, folder)
    return None if marker is None else marker.broker_epoch


def _read(disk: Disk, folder: str) -> _Marker | None:
    try:
        marker = msgspec.json.decode(disk.read_file(f"{folder}/{NAME}"), type=_Marker)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None  # none, or damaged: assume that records may be lost
    return marker if marker.version == _VERSION else None
