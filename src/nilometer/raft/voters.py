"""Who votes in a metadata quorum, and from which offset on: the voters are records of the log (KIP-853).

A voter is a process with a data folder. A folder that was emptied has another id: who forgot its votes and
its records does not vote under its old name.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from nilometer.identifiers import UNKNOWN_OFFSET, BrokerId, Offset
from nilometer.invariants import check


class VoterKey(NamedTuple):
    """A voter: its ``node.id``, and the ``directory.id`` of its metadata folder."""

    node_id: BrokerId
    directory_id: str

    def __str__(self) -> str:
        return f"{self.node_id}-{self.directory_id}"


class VoterSet(msgspec.Struct, frozen=True):
    """The voters, in the order of their ids. Not empty but for NO_VOTERS, and no id twice."""

    voters: tuple[VoterKey, ...]

    @classmethod
    def of(cls, *voters: VoterKey) -> VoterSet:
        check(
            len({voter.node_id for voter in voters}) == len(voters) > 0, "each voter has its own id", voters
        )
        return cls(tuple(sorted(voters)))

    def __contains__(self, voter: object) -> bool:
        return voter in self.voters

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def key_of(self, node_id: BrokerId) -> VoterKey | None:
        return next((voter for voter in self.voters if voter.node_id == node_id), None)

    def with_voter(self, voter: VoterKey) -> VoterSet:
        return VoterSet.of(*self.voters, voter)

    def without(self, voter: VoterKey) -> VoterSet:
        return VoterSet.of(*(one for one in self.voters if one != voter))


NO_VOTERS: Final = VoterSet(())
"""What a replica knows that has no record yet: it observes, and the log tells it who votes."""


class VoterRecord(NamedTuple):
    """A record of the log that says who votes from ``offset`` on."""

    offset: Offset
    voters: VoterSet


class VoterHistory:
    """The voters that the log names. The newest count, also before their record is committed.

    Invariant: *any majority of a set meets any majority of the next one*: they differ in one voter at most.
    """

    __slots__ = ("_records",)

    def __init__(self, first: VoterSet, records: tuple[VoterRecord, ...] = ()) -> None:
        """``first``: those of the newest snapshot, or of the log's first entries."""
        self._records = [VoterRecord(UNKNOWN_OFFSET, first), *records]

    @property
    def latest(self) -> VoterSet:
        return self._records[-1].voters

    @property
    def latest_offset(self) -> Offset:
        """Where the newest set is in the log; UNKNOWN_OFFSET if that is not known, and it is committed."""
        return self._records[-1].offset

    def add(self, record: VoterRecord) -> None:
        known = self._records[-1]
        check(record.offset > known.offset, "sets of voters are in the order of their offsets", record, known)
        differing = set(record.voters.voters) ^ set(known.voters.voters)
        differs_in_one = len(differing) <= 1 or known.voters == NO_VOTERS
        check(differs_in_one, "two sets of voters in a row differ in one voter", record, known)
        self._records.append(record)

    def truncate_to(self, offset: Offset) -> None:
        """Forget the sets at or above ``offset``: the log has lost their records."""
        while self._records[-1].offset >= offset:
            self._records.pop()

    def at(self, offset: Offset) -> VoterSet:
        """Return those that the records below ``offset`` name last."""
        return next(record.voters for record in reversed(self._records) if record.offset < offset)

    def trim_to(self, offset: Offset) -> None:
        """Forget where the sets below ``offset`` were: a snapshot has the last of them."""
        later = [record for record in self._records if record.offset >= offset]
        self._records = [VoterRecord(UNKNOWN_OFFSET, self.at(offset)), *later]

    def replace(self, voters: VoterSet) -> None:
        """Take those of a snapshot that replaces the log."""
        self._records = [VoterRecord(UNKNOWN_OFFSET, voters)]

    def between(self, begin: Offset, end: Offset) -> tuple[VoterRecord, ...]:
        """Return the sets whose records are from ``begin`` to ``end``, exclusive."""
        return tuple(record for record in self._records if begin <= record.offset < end)
