"""Orders the changes of rows, and says which versions each row had, and from and until when. Pure.

A change is newer than another one of its row if its position in the database's log is; what is not newer
than the newest known version is a repeat. A change that arrives after the row of a snapshot is newer than
that, also if its position is not: its transaction was open when the snapshot was taken.

A truncate ends all versions of its table whose position is below its own, also those that arrive after it. So
does a snapshot of the whole table, for the rows that were known before it.

Invariants: of each key one version is the newest; positions of a key's versions never decrease; a version is
valid until the next one of its key begins. A deleted version has the row that was deleted: columns that an
event does not have are taken from it. What a truncate deletes keeps its position, since changes that precede
the truncate may arrive after it, through another partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from nilometer.pipeline.changes.change_events import Change, completed

Position = tuple[int, bool, int, int]

NOT_COMPLETE: Final = (
    "the event does not have all columns, and no earlier version of the row is known: REPLICA IDENTITY FULL "
    "adds them"
)


@dataclass(frozen=True, slots=True)
class Version:
    key: str
    row: str | None
    deleted: bool
    snapshot: int
    """The position of the row's newest snapshot, 0 without one: no change that arrives later precedes it."""
    lsn: int
    seq: int
    valid_from: int
    """In microseconds."""
    valid_until: int | None = None
    newest: bool = True
    number: int | None = None
    """The number of the change that made it; None if it is the known one, or what a truncate left."""

    @property
    def position(self) -> Position:
        return position(self.snapshot, self.lsn, self.seq)


@dataclass(frozen=True, slots=True)
class Emptied:
    """All rows of a table were deleted, by a truncate or, seen by a snapshot, while changes were not read."""

    lsn: int
    seq: int
    at_us: int
    known_only: bool = False
    """Only rows that were known before: of a snapshot."""

    @property
    def position(self) -> Position:
        return position(0, self.lsn, self.seq)


@dataclass(frozen=True, slots=True)
class Outcome:
    versions: list[Version]
    """All versions of the keys that are valid after the known ones began, in no order of keys."""
    repeated: list[int]
    """The changes, by their number, that are not newer than what is known."""
    rejected: list[int]
    """The changes whose row cannot be completed."""
    waiting: list[int]
    """The changes that need the row's last version under its old key, which has not arrived."""


def position(snapshot: int, lsn: int, seq: int) -> Position:
    return max(snapshot, lsn), seq >= 0, lsn, seq


def versions_of(known: Iterable[Version], changes: Sequence[Change], emptied: Sequence[Emptied]) -> Outcome:
    """Return what ``changes``, in the order of their arrival, make of the ``known`` newest versions.

    They are of one key, or of several that a row had. ``emptied`` are in the order of their positions.
    """
    chains = {one.key: [one] for one in known}
    known_keys = set(chains)
    snapshots = {key: chain[-1].snapshot for key, chain in chains.items()}
    ordered: list[tuple[Position, int, Version]] = []
    for number, change in enumerate(changes):
        assert change.key is not None
        if change.snapshot:
            snapshots[change.key] = max(snapshots.get(change.key, 0), change.lsn)
        deleted = change.op == "d"
        base = snapshots.get(change.key, 0)
        new = Version(
            change.key, change.row, deleted, base, change.lsn, change.seq, change.at_us, number=number
        )
        ordered.append((new.position, number, new))
    outcome = Outcome([], [], [], [])
    waiting: set[str] = set()
    # A row that gets another key is deleted and created at one position: its last row is needed after that.
    for where, number, new in sorted(ordered, key=lambda one: (one[0], not one[2].deleted, one[1])):
        chain = chains.setdefault(new.key, [])
        _empty(chain, emptied, where, new.key in known_keys)
        if chain and where <= chain[-1].position:
            outcome.repeated.append(number)
            continue
        before = _before(new, changes[number], chains)
        if new.key in waiting or before == "waiting":
            waiting.add(new.key)
            outcome.waiting.append(number)
            continue
        row = _row(new, changes[number], before)
        if row is None and not new.deleted:
            outcome.rejected.append(number)
            continue
        _append(chain, replace(new, row=row))
    for key, chain in chains.items():
        _empty(chain, emptied, None, key in known_keys)
        outcome.versions.extend(chain)
    return outcome


def _before(
    new: Version, change: Change, chains: Mapping[str, Sequence[Version]]
) -> Version | Literal["waiting"] | None:
    """Return the version before a change, of the row's old key if it has just got another one."""
    chain = chains[new.key]
    if (chain and not chain[-1].deleted) or not change.missing or change.old_key is None:
        return chain[-1] if chain else None
    of_old_key = chains.get(change.old_key, ())
    for one in of_old_key:
        if one.deleted and (one.lsn, one.seq) == (new.lsn, new.seq):
            return one
    # The records of the two keys may be in two partitions.
    return "waiting" if not of_old_key or of_old_key[-1].lsn < new.lsn else None


def _row(new: Version, change: Change, before: Version | None) -> str | None:
    """Return the row of a version, complete; None if it cannot be. A deleted one keeps the last row."""
    if new.deleted:
        return before.row if before is not None else None
    if not change.missing or new.row is None:
        return new.row
    if before is None or before.row is None:
        return None
    return completed(new.row, change.missing, before.row)


def _empty(chain: list[Version], emptied: Sequence[Emptied], until: Position | None, known: bool) -> None:
    """End the row by each deletion of all rows after its newest version, and before ``until``."""
    for one in emptied:
        if not chain or chain[-1].deleted or (one.known_only and not known):
            continue
        if chain[-1].position < one.position and (until is None or one.position < until):
            _append(chain, replace(chain[-1], deleted=True, valid_from=one.at_us, number=None))


def _append(chain: list[Version], new: Version) -> None:
    if chain:
        chain[-1] = replace(chain[-1], valid_until=new.valid_from, newest=False)
    chain.append(new)
