"""A file with the last registered broker epoch that used a log directory, and the machine's boot id then.

A process that was killed has lost no records if the machine kept running: its writes are in the page cache or
on the disk. So a starting broker that finds the current boot id in the file may claim that its previous
incarnation lost no records, and stays an eligible leader (KIP-966), as after a clean shutdown. After a power
cut the boot id differs, and it may not.

The file is written once a registration is folded, before clients are served; never by an incarnation that was
not registered.
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
    """Write the marker of ``broker_epoch``. Call it off the event loop. Raises OSError.

    ``may_have_lost_records``: write no boot id, as :func:`mark_possible_loss` does.
    """
    marker = _Marker(_VERSION, broker_epoch, "" if may_have_lost_records else disk.boot_id())
    disk.replace_file(f"{folder}/{NAME}", msgspec.json.encode(marker))


def mark_possible_loss(disk: Disk, folder: str) -> None:
    """Remove the boot id from the marker, so that no later start claims that no records were lost.

    Call it off the event loop. Raises OSError; before that it removes the marker, which has the same effect.
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
    """Return the last registered broker epoch, if the machine has not stopped since; else None.

    Raises OSError.
    """
    boot_id = disk.boot_id()
    marker = _read(disk, folder)
    return marker.broker_epoch if boot_id and marker is not None and marker.boot_id == boot_id else None


def read_broker_epoch(disk: Disk, folder: str) -> int | None:
    """Return the last registered broker epoch, however that incarnation ended; None without a readable
    marker. Raises OSError."""
    marker = _read(disk, folder)
    return None if marker is None else marker.broker_epoch


def _read(disk: Disk, folder: str) -> _Marker | None:
    try:
        marker = msgspec.json.decode(disk.read_file(f"{folder}/{NAME}"), type=_Marker)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None  # missing or damaged: assume that records may be lost
    return marker if marker.version == _VERSION else None
