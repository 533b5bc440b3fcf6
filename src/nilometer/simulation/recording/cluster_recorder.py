"""Recording a simulated cluster: the messages between its brokers, their replicas, faults and findings.

It reads the state of running brokers and changes nothing, uses no random number and sets no timer. So a run
takes the same course with and without it.

A replica's state is compared with the last known one whenever its broker sends or gets a message, and when
the run looks at the cluster. Internal topics are not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from nilometer.identifiers import TopicId, TopicIdPartition
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.fabric import NetworkUser
from nilometer.simulation.packet_observer import DirectionObserver
from nilometer.simulation.recording.format import Event, Kind, Status
from nilometer.simulation.recording.messages import Conversation, Message, Stream
from nilometer.simulation.recording.replica_state import Difference, ReplicaState, difference, first_state
from nilometer.simulation.recording.roles import state_of
from nilometer.simulation.recording.writer import RecordingWriter
from nilometer.simulation.world import Process

_BROKER = re.compile(r"broker-([0-9]+)")
_INTERNAL = "__"
_STATUSES = {
    "starts": (Status.STARTING, "starts"),
    "serves": (Status.RUNNING, "serves"),
    "pauses": (Status.PAUSED, "is paused"),
    "resumes": (Status.RUNNING, "resumes"),
    "crashes": (Status.DOWN, "crashes"),
    "exits": (Status.DOWN, "exits"),
}
"""First word of a broker's line in the trace → its status from then on, and the text of the event."""
_FAULTS_OF_NETWORK = ("cut", "heal", "slow")
_FAULTS_OF_MACHINE = ("loses power", "has power")


class ClusterRecorder:
    """Records from its construction on, which must be before the cluster starts, until the run is over."""

    def __init__(self, cluster: Cluster, writer: RecordingWriter, from_s: float = 0.0) -> None:
        """``from_s``: record no event before this time (simulated seconds)."""
        self._cluster = cluster
        self._loop = cluster.world.loop
        self._writer = writer
        self._from_s = from_s
        self._replicas = {broker_id: _BrokerReplicas() for broker_id in cluster.nodes}
        self._topic_names: dict[TopicId, str] = {}
        self._messages = 0
        self._findings: set[str] = set()
        cluster.world.network.observer = self
        cluster.world.trace.observer = self.on_trace

    @property
    def is_over(self) -> bool:
        return self._cluster.world.is_over or self._writer.is_cut

    @property
    def is_active(self) -> bool:
        return not self.is_over and self._loop.time() >= self._from_s

    @property
    def _now_us(self) -> int:
        return round(self._loop.time() * 1_000_000)

    # ── what the run calls ──────────────────────────────────────────────────────────────────────
    def look(self, findings: Iterable[str] = ()) -> None:
        """Record what has changed in any replica, and the ``findings`` that are new."""
        if not self.is_active:
            return
        for broker_id in self._cluster.known:
            self.look_at(broker_id)
        for event in self._new_findings(findings):
            self._writer.add(event)

    def end(self, findings: Iterable[str]) -> None:
        """Record the findings of the whole run and end the recording."""
        last = list(self._new_findings(findings))
        found = "" if self._findings else " No checker found a violation."
        verdict = Event(at_us=self._now_us, kind=Kind.NOTE, text=f"The run has ended.{found}")
        self._writer.end([*last, verdict])

    def _new_findings(self, findings: Iterable[str]) -> Iterator[Event]:
        for text in findings:
            if text not in self._findings:
                self._findings.add(text)
                yield Event(at_us=self._now_us, kind=Kind.FINDING, text=text)

    # ── what the simulation notifies it of ──────────────────────────────────────────────────────
    def on_trace(self, who: str, what: str) -> None:
        if not self.is_active:
            return
        if who == "faults":
            self._add(Kind.FAULT, what)
        elif who == "network":
            if what.startswith(_FAULTS_OF_NETWORK):
                self._add(Kind.FAULT, f"network: {what}")
        elif what in _FAULTS_OF_MACHINE:
            self._add(Kind.FAULT, f"{who} {what}")
        elif (broker := _number(who)) is not None and (found := _STATUSES.get(what.split(" ", 1)[0])):
            self.look_at(broker)
            status, text = found
            self._add(Kind.BROKER, text, broker=broker, status=status)

    def on_connection(
        self, client: NetworkUser, server: NetworkUser
    ) -> tuple[DirectionObserver, DirectionObserver] | None:
        near, far = _number(client.name), _number(server.name)
        if far is None:
            return None
        if near is None:
            return _ClientDirection(self, far), _ClientDirection(self, far)
        conversation = Conversation(self._topic_names)
        return (
            _ObservedDirection(self, conversation.requests, near, far),
            _ObservedDirection(self, conversation.responses, far, near),
        )

    def on_message(self, kind: Kind, source: int, target: int, sent: Iterable[tuple[int, Message]]) -> None:
        """Record that messages were sent or arrived; before it, what has changed in the broker that acts."""
        self.look_at(target if kind is Kind.DELIVERED else source)
        for number, message in sent:
            self._add(
                kind,
                message.text,
                broker=source,
                to=target,
                message=number,
                partitions=message.partitions,
            )

    def next_number(self) -> int:
        self._messages += 1
        return self._messages

    # ── replicas ────────────────────────────────────────────────────────────────────────────────
    def look_at(self, broker_id: int) -> None:
        """Record what has changed in the replicas of a broker."""
        node = self._cluster.known.get(broker_id)
        if node is None or not node.is_serving:
            return
        replicas = self._replicas.setdefault(broker_id, _BrokerReplicas())
        for partition, found in replicas.differences(node, self._topic_names):
            if found is None:
                self._add(Kind.REMOVED, f"removes its replica of {partition}", broker_id, (partition,))
            else:
                self._add(found.kind, found.text, broker_id, (partition,), found)

    def _add(
        self,
        kind: Kind,
        text: str,
        broker: int | None = None,
        partitions: tuple[str, ...] = (),
        found: Difference | None = None,
        *,
        to: int | None = None,
        message: int | None = None,
        status: Status | None = None,
    ) -> None:
        self._writer.add(
            Event(
                at_us=self._now_us,
                kind=kind,
                text=text,
                broker=broker,
                to=to,
                message=message,
                partitions=partitions,
                change=found.change if found is not None else None,
                status=status,
            )
        )


class _ObservedDirection:
    """The messages from one broker to another on one connection."""

    def __init__(self, recorder: ClusterRecorder, stream: Stream, source: int, target: int) -> None:
        self._recorder = recorder
        self._stream = stream
        self._source = source
        self._target = target

    def on_sent(self, data: bytes) -> None:
        if not self._recorder.is_over:
            self._note(Kind.SENT, self._stream.on_sent(data, self._recorder.next_number))

    def on_arrived(self, size: int, is_open: bool) -> None:
        if not self._recorder.is_over:
            self._note(Kind.DELIVERED if is_open else Kind.DROPPED, self._stream.on_arrived(size))

    def on_dropped(self) -> None:
        if not self._recorder.is_over:
            self._note(Kind.DROPPED, self._stream.on_dropped())

    def _note(self, kind: Kind, messages: list[tuple[int, Message]]) -> None:
        if self._recorder.is_active and (messages or kind is Kind.SENT):
            self._recorder.on_message(kind, self._source, self._target, messages)


class _ClientDirection:
    """The bytes between a client and a broker: no events, but after them the broker's replicas may differ."""

    def __init__(self, recorder: ClusterRecorder, broker: int) -> None:
        self._recorder = recorder
        self._broker = broker

    def on_sent(self, data: bytes) -> None:
        if self._recorder.is_active:
            self._recorder.look_at(self._broker)

    def on_arrived(self, size: int, is_open: bool) -> None:
        pass

    def on_dropped(self) -> None:
        pass


class _BrokerReplicas:
    """The last known states of one broker's replicas."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._states: dict[TopicIdPartition, tuple[str, ReplicaState]] = {}

    def differences(
        self, node: BrokerNode, topic_names: dict[TopicId, str]
    ) -> list[tuple[str, Difference | None]]:
        """Return (partition, what has changed) since the last call; None: the replica is gone.

        Adds the names of the topics to ``topic_names``.
        """
        if node.process is not self._process:
            self._process = node.process
            self._states = {}
        found: list[tuple[str, Difference | None]] = []
        gone = dict(self._states)
        for partition in node.partitions:
            if partition.topic.startswith(_INTERNAL):
                continue
            gone.pop(partition.key, None)
            topic_names[partition.key.topic_id] = partition.topic
            log, name = partition.log, str(partition)
            offsets = (log.log_start_offset, log.log_end_offset)
            now = state_of(partition.replica.role, offsets, log.epochs.entries)
            _, before = self._states.get(partition.key, (name, None))
            change = first_state(name, now) if before is None else difference(name, before, now)
            if change is not None:
                self._states[partition.key] = (name, now)
                found.append((name, change))
        for key, (name, _) in gone.items():
            del self._states[key]
            found.insert(0, (name, None))
        return found


def _number(name: str) -> int | None:
    """Return the number of the broker whose processes have this name; None for another program."""
    found = _BROKER.fullmatch(name)
    return int(found[1]) if found is not None else None
