"""``roundrobin``: assigns the partitions of all topics to the members in turn. Pure.

A member that does not subscribe to a partition's topic is skipped; the next partition goes to the member
after the one that got the last. With equal subscriptions no two members differ by more than one partition.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.client.group.assignors.assignor import Assignments, AssignmentTask, RebalanceProtocol
from nilometer.client.network.cluster_metadata import TopicPartition


class RoundRobinAssignor:
    name = "roundrobin"
    protocols = (RebalanceProtocol.EAGER,)

    def assign(self, task: AssignmentTask) -> Assignments:
        members = task.ordered_members()
        found: Assignments = {member: [] for member in members}
        turn = 0
        for partition in task.partitions():
            while partition.topic not in task.members[members[turn]].topics:
                turn = (turn + 1) % len(members)
            found[members[turn]].append(partition)
            turn = (turn + 1) % len(members)
        return found

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return None
