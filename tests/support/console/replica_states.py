"""Replicas as brokers describe them, for tests of what the console makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nilometer.client.admin.replica_survey import BrokerAnswer, ReplicaRow, Survey
from nilometer.client.network.cluster_metadata import (
    BrokerNode,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from nilometer.wire.own_apis import (
    BrokerState,
    DescribeReplicasResponse,
    HighWatermarkHoldState,
    LeaderState,
    RemoteReplicaState,
    ReplicaState,
    SegmentsState,
    TierState,
)

NOT_HELD = HighWatermarkHoldState(reason="not-held", text="not held")


@dataclass(frozen=True)
class Partition:
    """A partition of three replicas, led by broker 1; ``ends`` are log end offsets by broker."""

    topic: str = "t"
    ends: Mapping[int, int | None] = field(default_factory=lambda: {1: 10, 2: 10, 3: 10})
    """None: the broker does not respond."""
    high_watermark: int = 10
    isr: Sequence[int] = (1, 2, 3)
    remote: Mapping[int, int] | None = None
    """The followers' log end offsets as the leader knows them; by default as they are."""
    hold: HighWatermarkHoldState = NOT_HELD
    needed: int = 2
    leader: int = 1
    chain: tuple[tuple[int, int], ...] = ((0, 0),)
    flushed: int = 10
    age_ms: int = 1_500
    segments: Mapping[int, SegmentsState] = field(default_factory=dict[int, SegmentsState])
    """By broker; the others do not describe theirs."""
    tier: TierState | None = None

    def survey(self) -> Survey:
        ends = self.ends
        remote = self.remote if self.remote is not None else {k: v for k, v in ends.items() if v is not None}
        states = {broker: self._state(broker, end, remote) for broker, end in ends.items() if end is not None}
        led = states.get(self.leader)
        seen = (
            {} if led is None or led.leader is None else {one.broker_id: one for one in led.leader.followers}
        )
        rows = tuple(
            ReplicaRow(
                self.topic,
                0,
                broker,
                states.get(broker),
                None if broker in states else "no response from it within 2000 ms",
                broker in self.isr if states else None,
                seen.get(broker),
            )
            for broker in ends
        )
        metadata = ClusterMetadata(
            "c",
            1,
            {broker: BrokerNode(broker, "127.0.0.1", 9091 + broker) for broker in ends},
            {
                self.topic: TopicMetadata(
                    self.topic,
                    None,
                    (PartitionMetadata(0, self.leader, 0, tuple(ends), tuple(self.isr)),),
                )
            },
        )
        answers = tuple(self._answer(broker, states.get(broker)) for broker in ends)
        return Survey("c", 1, answers, rows, (), metadata)

    def _answer(self, broker: int, state: ReplicaState | None) -> BrokerAnswer:
        node = BrokerNode(broker, "127.0.0.1", 9091 + broker)
        if state is None:
            return BrokerAnswer(broker, node, None, "no response")
        known = BrokerState(
            broker_id=broker,
            broker_epoch=4,
            controller_id=1,
            controller_epoch=1,
            metadata_number=9,
            unclean_elections=0,
        )
        return BrokerAnswer(
            broker, node, DescribeReplicasResponse(cluster_id="c", broker=known, replicas=(state,)), None
        )

    def _state(self, broker: int, end: int, remote: Mapping[int, int]) -> ReplicaState:
        more: dict[str, Any] = {}
        if broker == self.leader:
            more["tier"] = self.tier
            more["leader"] = LeaderState(
                epoch_start_offset=self.chain[-1][1],
                isr=tuple(self.isr),
                maximal_isr=tuple(self.isr),
                pending_isr=None,
                needed_in_sync=self.needed,
                hold=self.hold,
                followers=tuple(
                    RemoteReplicaState(
                        broker_id=one,
                        broker_epoch=4,
                        log_start_offset=0,
                        log_end_offset=remote.get(one, -1),
                        caught_up_age_ms=self.age_ms,
                        is_assigned=True,
                        is_eligible=True,
                    )
                    for one in self.ends
                    if one != self.leader
                ),
            )
        return ReplicaState(
            topic=self.topic,
            topic_id="AAAA",
            partition=0,
            broker_id=broker,
            role="leader" if broker == self.leader else "follower",
            leader_id=self.leader,
            leader_epoch=self.chain[-1][0],
            partition_epoch=3,
            replicas=tuple(self.ends),
            isr=tuple(self.isr),
            in_sync=broker in self.isr,
            log_start_offset=0,
            log_end_offset=end,
            flushed_offset=self.flushed,
            high_watermark=min(self.high_watermark, end),
            last_stable_offset=min(self.high_watermark, end),
            size_bytes=end * 70,
            epoch_chain=self.chain,
            segments=self.segments.get(broker),
            **more,
        )
