"""What the members of one group were given and did, and the judge of it. Pure.

Four promises: a partition belongs to at most one member of a generation; every acknowledged record is
processed at least once, by any member; a member that gets a partition begins at or behind what was committed
of it before, and acknowledged; and commits that a member makes in the background are acknowledged in order.
A fifth, that the group settles once nothing is broken any more, is checked by :mod:`convergence`.
"""

from __future__ import annotations

from collections.abc import Iterable

from nilometer.simulation.checkers.history import Partition

FINDINGS_MAX = 10


class GroupLedger:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.generations = 0
        """The number of generations in which a member got an assignment."""
        self.processed: dict[Partition, set[str]] = {}
        self.repeated = 0
        self._owners: dict[int, dict[Partition, str]] = {}
        self._committed: dict[Partition, int] = {}
        self._floors: dict[tuple[str, Partition], int] = {}
        """What is not to be read again by a member that has just got a partition."""
        self._acknowledged: dict[tuple[str, Partition], int] = {}
        """The last commit in the background of each owner, since it got the partition."""
        self._violations: list[str] = []

    def assigned(self, member: str, generation: int, partitions: Iterable[Partition]) -> None:
        """``member`` received its whole assignment; it may receive the same one again."""
        if generation not in self._owners:
            self._owners[generation] = {}
            self.generations += 1
        owners = self._owners[generation]
        for partition in partitions:
            other = owners.setdefault(partition, member)
            if other != member:
                self._violations.append(
                    f"two owners: {partition} belongs to {other} and to {member} in generation {generation} "
                    f"of group {self.group_id}"
                )

    def takes_over(self, member: str, partitions: Iterable[Partition]) -> None:
        """``member`` will ask where to begin in these partitions."""
        for partition in partitions:
            self._acknowledged.pop((member, partition), None)
            if partition in self._committed:
                self._floors[member, partition] = self._committed[partition]

    def read(self, member: str, partition: Partition, offset: int) -> None:
        floor = self._floors.pop((member, partition), 0)
        if offset < floor:
            self._violations.append(
                f"forgotten commit: {floor} of {partition} was committed by group {self.group_id}, and "
                f"{member}, which took it over later, began at {offset}"
            )

    def commit(self, partition: Partition, offset: int) -> None:
        """It was acknowledged."""
        self._committed[partition] = offset

    def commit_in_background(self, member: str, partition: Partition, offset: int) -> None:
        """It was acknowledged to ``member``, which still has the partition, and had gone on meanwhile."""
        before = self._acknowledged.get((member, partition), 0)
        if offset < before:
            self._violations.append(
                f"undone commit: {member} got an acknowledgement for offset {before} of {partition}, "
                f"then for {offset}"
            )
        self._acknowledged[member, partition] = max(offset, before)
        self._committed[partition] = offset

    def process(self, partition: Partition, value: str) -> None:
        seen = self.processed.setdefault(partition, set())
        self.repeated += value in seen
        seen.add(value)

    def missing(self, acknowledged: Iterable[tuple[Partition, str]]) -> list[str]:
        """Acknowledged records that no member processed."""
        nothing: set[str] = set()
        return [
            f"unprocessed: {value} in {partition} was acknowledged, and no member of group {self.group_id} "
            "ever processed it"
            for partition, value in acknowledged
            if value not in self.processed.get(partition, nothing)
        ]

    def violations(self) -> list[str]:
        return self._violations[:FINDINGS_MAX]
