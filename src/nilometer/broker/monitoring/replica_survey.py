"""One pass over the hosted partitions: the sums of which the metrics of replicas are made."""

from __future__ import annotations

from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.traffic import BrokerTraffic, TrafficTotals
from nilometer.identifiers import UNKNOWN_OFFSET
from nilometer.replication import LeaderRole, RemoteReplica


class TopicSums:
    """The sums of one topic's hosted partitions."""

    __slots__ = ("log_bytes", "partitions", "traffic")

    def __init__(self, traffic: TrafficTotals) -> None:
        self.traffic = traffic
        self.log_bytes = 0
        self.partitions = 0


class ReplicaSurvey:
    def __init__(self, traffic: BrokerTraffic) -> None:
        self.all_topics = TopicSums(traffic.departed.copy())
        self.by_topic = {
            topic: TopicSums(totals.copy()) for topic, totals in traffic.departed_by_topic.items()
        }
        self.leaders = self.under_replicated = self.under_min_isr = self.at_min_isr = self.reassigning = 0
        self.produce_waits = 0
        """Acknowledgements of single partitions that Produce requests wait for."""
        self.lag_of_followers: dict[int, int] = {}
        """By the follower's broker id: the most records that it is behind, of all partitions led here."""

    def add(self, partition: Partition) -> None:
        log, traffic = partition.log, partition.traffic
        of_topic = self.by_topic.get(partition.topic)
        if of_topic is None:
            of_topic = self.by_topic[partition.topic] = TopicSums(TrafficTotals())
        log_bytes = log.state.size
        for sums in (self.all_topics, of_topic):
            sums.traffic.add_partition(traffic, log.log_end_offset)
            sums.log_bytes += log_bytes
            sums.partitions += 1
        self.produce_waits += partition.waiting_produces
        role = partition.replica.role
        if isinstance(role, LeaderRole):
            self._add_led(partition, role)

    def _add_led(self, partition: Partition, role: LeaderRole) -> None:
        in_sync = len(role.isr)
        self.leaders += 1
        self.under_replicated += is_under_replicated(partition)
        self.under_min_isr += in_sync < role.needed_in_sync
        self.at_min_isr += in_sync == role.needed_in_sync
        self.reassigning += partition.state.is_reassigning
        for remote in role.remote_replicas:
            known = self.lag_of_followers.get(remote.broker_id, 0)
            self.lag_of_followers[remote.broker_id] = max(known, records_behind(role, remote))


def is_under_replicated(partition: Partition) -> bool:
    """Whether fewer replicas are in sync than assigned; those that a reassignment adds do not count."""
    state = partition.state
    wanted = len(state.original_replicas) if state.is_reassigning else len(state.replicas)
    return len(state.isr) < wanted


def records_behind(role: LeaderRole, remote: RemoteReplica) -> int:
    """Return how many records of the leader's log a follower has not fetched: all that are above the high
    watermark at least, if it has not fetched since the leader was elected."""
    fetched = role.high_watermark if remote.log_end_offset == UNKNOWN_OFFSET else remote.log_end_offset
    return max(0, role.log_end_offset - fetched)
