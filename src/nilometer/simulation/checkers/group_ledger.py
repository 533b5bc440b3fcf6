"""The ledger of one consumer group: assignments, processed records and commits; and its checks.

Four promises are checked: a partition is assigned to at most one member in a generation; every acknowledged
record is processed at least once, by any member; a member that gets a partition starts at or after the
offset committed (and acknowledged) before; and a member's asynchronous commits are acknowledged in order. A
fifth, that the group settles after all faults are healed, is checked by ``running_brokers``.
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
        """The committed offset when a member got a partition: it must not start below."""
        self._acknowledged: dict[tuple[str, Partition], int] = {}
        """The last asynchronous commit of each owner since it got the partition."""
        self._violations: list[str] = []

    def assigned(self, member: str, generation: int, partitions: Iterable[Partition]) -> None:
        """Record the whole assignment of ``member``, which it may receive several times."""
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
        """Record that ``member`` got these partitions and will fetch their committed offsets."""
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
        """Record an acknowledged commit."""
        self._committed[partition] = offset

    def commit_in_background(self, member: str, partition: Partition, offset: int) -> None:
        """Record an acknowledged asynchronous commit of ``member``, which still has the partition."""
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
        """Return the acknowledged records (partition, value) that no member processed."""
        nothing: set[str] = set()
        return [
            f"unprocessed: {value} in {partition} was acknowledged, and no member of group {self.group_id} "
            "ever processed it"
            for partition, value in acknowledged
            if value not in self.processed.get(partition, nothing)
        ]

    def violations(self) -> list[str]:
        return self._violations[:FINDINGS_MAX]
