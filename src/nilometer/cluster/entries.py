"""Entries of the metadata log: records signed by a controller, as JSON bytes.

An entry carries the controller epoch and incarnation of the controller that decided it. The fold ignores an
entry of any other term than the current one, so a deposed controller may win a number and changes nothing.

Records come in *units*: those of one unit are applied together and so share an entry; units are packed
in order into entries of about :data:`ENTRY_BYTES_TARGET`. The coordination stores' own limit is 1 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from nilometer.cluster.identifiers import BrokerId, ControllerEpoch, Incarnation
from nilometer.cluster.records import FORMAT_VERSION, OLDEST_FORMAT_VERSION, Record, format_version_of

ENTRY_BYTES_TARGET = 256 * 1024
ENTRY_BYTES_MAX = 900_000
"""No unit may be larger; below ZooKeeper's limit of 1 MB for a node."""
_ENVELOPE_BYTES = 512

Unit = tuple[Record, ...]


class BadEntry(Exception):
    """These bytes are not an entry that this version can read. Nothing of it may be applied."""


class EntryFromTheFuture(BadEntry):
    """An entry of a newer format: this broker must be upgraded before it can take part."""


class UnitTooLarge(ValueError):
    """The records of one unit do not fit into one entry."""


class Controllership(NamedTuple):
    """A controller's term: the fields that it signs its entries with."""

    controller_id: BrokerId
    incarnation: Incarnation
    controller_epoch: ControllerEpoch


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    version: int = OLDEST_FORMAT_VERSION
    """The lowest that its records need."""
    controller_id: BrokerId
    controller_incarnation: Incarnation
    controller_epoch: ControllerEpoch
    records: tuple[Record, ...]

    @property
    def controllership(self) -> Controllership:
        return Controllership(self.controller_id, self.controller_incarnation, self.controller_epoch)


class _Envelope(msgspec.Struct):
    version: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Entry)
_envelope_decoder = msgspec.json.Decoder(_Envelope)


def encode_entry(entry: Entry) -> bytes:
    return _encoder.encode(entry)


def decode_entry(data: bytes | memoryview) -> Entry:
    """Raises EntryFromTheFuture for a newer format, BadEntry for whatever else cannot be read."""
    try:
        version = _envelope_decoder.decode(data).version
        if version > FORMAT_VERSION:
            raise EntryFromTheFuture(
                f"Metadata entry of format version {version}, but this broker reads versions up to "
                f"{FORMAT_VERSION}: upgrade this broker"
            )
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise BadEntry(f"Metadata entry cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise BadEntry(f"Metadata entry is not UTF-8: {error}") from error
    except RecursionError as error:
        raise BadEntry("Metadata entry is nested too deeply to be read") from error


def record_bytes(records: Iterable[Record]) -> int:
    """How much room ``records`` take in an entry."""
    return sum(len(_encoder.encode(record)) + 1 for record in records)


def fits_one_entry(unit: Sequence[Record]) -> bool:
    return record_bytes(unit) + _ENVELOPE_BYTES <= ENTRY_BYTES_MAX


def entries_of(
    units: Iterable[Unit], controllership: Controllership, target: int = ENTRY_BYTES_TARGET
) -> Iterator[Entry]:
    """Packs units, in order, into as few entries as ``target`` bytes allow; none for no records.

    Raises UnitTooLarge where a unit exceeds :data:`ENTRY_BYTES_MAX` by itself.
    """
    gathered: list[Record] = []
    size = _ENVELOPE_BYTES
    for unit in units:
        unit_size = record_bytes(unit)
        if unit_size + _ENVELOPE_BYTES > ENTRY_BYTES_MAX:
            raise UnitTooLarge(
                f"{len(unit)} records that belong together take {unit_size} bytes; "
                f"an entry holds {ENTRY_BYTES_MAX - _ENVELOPE_BYTES}"
            )
        if gathered and size + unit_size > target:
            yield sign(gathered, controllership)
            gathered, size = [], _ENVELOPE_BYTES
        gathered.extend(unit)
        size += unit_size
    if gathered:
        yield sign(gathered, controllership)


def sign(records: Iterable[Record], controllership: Controllership) -> Entry:
    """The entry with ``records`` that the controller of this term appends."""
    gathered = tuple(records)
    return Entry(
        version=format_version_of(gathered),
        controller_id=controllership.controller_id,
        controller_incarnation=controllership.incarnation,
        controller_epoch=controllership.controller_epoch,
        records=gathered,
    )
