"""What the members of one group were given and did, and the judge of it. Pure.

Two promises: a partition belongs to at most one member of a generation, and every acknowledged record is
processed at least once, by whichever member. A third, that the group settles once nothing is broken any
more, is for whoever looks at the members.
"""

from __future__ import annotations

from collections.abc import Iterable

from nilometer.simulation.checkers.history import Partition

FINDINGS_MAX = 10


class GroupLedger:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.generations = 0
        """How many generations somebody got an assignment in."""
        self.processed: dict[Partition, set[str]] = {}
        self.repeated = 0
        self._owners: dict[int, dict[Partition, str]] = {}
        self._violations: list[str] = []

    def assigned(self, member: str, generation: int, partitions: Iterable[Partition]) -> None:
        """``member`` was told of its whole assignment; it may be told again of the same one."""
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
