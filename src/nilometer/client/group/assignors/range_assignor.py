"""``range``: divides the partitions of each topic, in order, into one contiguous range per member. Pure.

If a topic does not divide evenly, the first members get one partition more. Members with equal subscriptions
get the same partition indexes of topics with equal partition counts, so that records with the same key are
read by the same member.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.client.group.assignors.assignor import Assignments, AssignmentTask, RebalanceProtocol
from nilometer.client.network.cluster_metadata import TopicPartition


class RangeAssignor:
    name = "range"
    protocols = (RebalanceProtocol.EAGER,)

    def assign(self, task: AssignmentTask) -> Assignments:
        found: Assignments = {member: [] for member in task.ordered_members()}
        for topic in task.topics():
            members = task.ordered_members(topic)
            each, more = divmod(task.partition_counts[topic], len(members))
            begin = 0
            for index, member in enumerate(members):
                end = begin + each + (index < more)
                found[member] += [TopicPartition(topic, number) for number in range(begin, end)]
                begin = end
        return found

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return None
