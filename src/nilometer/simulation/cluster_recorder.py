"""Recording a simulated cluster: the messages between its brokers, their replicas, faults and findings.

It reads the state of running brokers and changes nothing, uses no random number and sets no timer. So a run
takes the same course with and without it.

A replica's state is compared with the last known one whenever its broker sends or gets a message, and when
the run looks at the cluster. Internal topics are not recorded.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from nilometer.identifiers import NO_LEADER_EPOCH, TopicId, TopicIdPartition, topic_id_of
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.network import DirectionObserver, NetworkUser
from nilometer.simulation.recording import Event, Kind, RecordingWriter, Status
from nilometer.simulation.replay import Difference, ReplicaState, difference, first_state, state_of
from nilometer.simulation.world import Process
from nilometer.wire.api_keys import ApiKey, any_api_key
from nilometer.wire.errors import CorruptBatch, ErrorCode, UnsupportedMagic
from nilometer.wire.fetch import (
    FOLLOWER_VERSION_MAX,
    FOLLOWER_VERSION_MIN,
    FetchedFromLeader,
    WantedPartition,
    decode_fetch_body,
    decode_leader_answer,
)
from nilometer.wire.frames import LENGTH_BYTES, FrameSplitter
from nilometer.wire.messages import (
    RequestHeader,
    decode_correlation_id,
    decode_request,
    decode_request_header,
)
from nilometer.wire.record_batch import batches

# The messages between two brokers, from the bytes of their connection, as words for a recording.
#
# Fetches are described by what they say of the recorded partitions, other messages by their names. Left out
# are fetches and responses that concern no recorded partition (most of them only wait), and ApiVersions, by
# which brokers connect and confirm that they are alive.

PARTITIONS_NAMED = 4
"""A message's text names at most this many partitions."""

Names = Mapping[TopicId, str]
"""The names of the recorded topics, by id."""


class Message(NamedTuple):
    text: str
    partitions: tuple[str, ...]


class Stream:
    """One direction of a connection: which messages were sent, and which of them have arrived.

    Invariant: messages arrive in the order in which they were sent.
    """

    def __init__(self, describe: Callable[[bytes], Message | None]) -> None:
        self._describe = describe
        self._frames = FrameSplitter()
        self._sent_bytes = 0
        self._arrived_bytes = 0
        self._in_flight: deque[tuple[int, int, Message]] = deque()
        """(the position of its end, number, message)"""

    def on_sent(self, data: bytes, next_number: Callable[[], int]) -> list[tuple[int, Message]]:
        """Return the messages that ``data`` completes, with their new numbers."""
        sent: list[tuple[int, Message]] = []
        for frame in self._frames.feed(data):
            self._sent_bytes += LENGTH_BYTES + len(frame)
            message = self._describe(frame)
            if message is not None:
                sent.append((next_number(), message))
                self._in_flight.append((self._sent_bytes, *sent[-1]))
        return sent

    def on_arrived(self, size: int) -> list[tuple[int, Message]]:
        """Return the messages whose last byte is among the next ``size`` bytes."""
        self._arrived_bytes += size
        arrived: list[tuple[int, Message]] = []
        while self._in_flight and self._in_flight[0][0] <= self._arrived_bytes:
            _, number, message = self._in_flight.popleft()
            arrived.append((number, message))
        return arrived

    def on_dropped(self) -> list[tuple[int, Message]]:
        """Forget the messages in flight, which will not arrive any more, and return them."""
        dropped = [(number, message) for _, number, message in self._in_flight]
        self._in_flight.clear()
        return dropped


class Conversation:
    """The two directions of a connection between brokers; a response is described by its request."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._asked: dict[int, RequestHeader] = {}
        self.requests = Stream(self._request)
        self.responses = Stream(self._response)

    def _request(self, frame: bytes) -> Message | None:
        header = decode_request_header(frame)
        self._asked[header.correlation_id] = header
        match header.api_key:
            case ApiKey.FETCH:
                return fetch(header, frame, self._names)
            case ApiKey.ALTER_PARTITION:
                return _alter_partition(frame, self._names)
            case ApiKey.API_VERSIONS:
                return None
            case _:
                return Message(_name(header.api_key), ())

    def _response(self, frame: bytes) -> Message | None:
        header = self._asked.pop(decode_correlation_id(frame), None)
        if header is None:
            return Message("response", ())
        if header.api_key == ApiKey.FETCH:
            return fetch_response(header, frame, self._names)
        if header.api_key == ApiKey.API_VERSIONS:
            return None
        return Message(f"{_name(header.api_key)} response", ())


def fetch(header: RequestHeader, frame: bytes, names: Names) -> Message | None:
    body = decode_fetch_body(header.api_version, memoryview(frame), header.size)
    wanted = [
        (f"{name}-{one.partition}", one)
        for topic, partitions in body.topics
        if isinstance(topic, bytes) and (name := names.get(topic_id_of(UUID(bytes=topic)))) is not None
        for one in partitions
    ]
    return _listed("Fetch", wanted, _describe_wanted)


def fetch_response(header: RequestHeader, frame: bytes, names: Names) -> Message | None:
    """Return the description of a leader's response to a follower."""
    if not FOLLOWER_VERSION_MIN <= header.api_version <= FOLLOWER_VERSION_MAX:
        return Message("Fetch response", ())
    found = [
        (f"{name}-{one.partition}", one)
        for one in decode_leader_answer(memoryview(frame), 4).partitions
        if (name := names.get(topic_id_of(UUID(bytes=one.topic_id)))) is not None
    ]
    return _listed("Fetch response", found, _describe_found)


def _alter_partition(frame: bytes, names: Names) -> Message:
    _, request = decode_request(frame)
    wanted: list[tuple[str, Any]] = [
        (f"{name}-{one.partition_index}", one)
        for topic in request.topics
        if (name := names.get(topic_id_of(topic.topic_id))) is not None
        for one in topic.partitions
    ]
    return _listed("AlterPartition", wanted, _describe_isr) or Message("AlterPartition", ())


def _listed(name: str, parts: list[tuple[str, Any]], describe: Callable[[Any], str]) -> Message | None:
    if not parts:
        return None
    text = ", ".join(f"{partition} {describe(one)}" for partition, one in parts[:PARTITIONS_NAMED])
    more = f", and {len(parts) - PARTITIONS_NAMED} more" if len(parts) > PARTITIONS_NAMED else ""
    return Message(f"{name} {text}{more}", tuple(partition for partition, _ in parts))


def _describe_wanted(one: WantedPartition) -> str:
    epoch = f" (last epoch {one.last_fetched_epoch})" if one.last_fetched_epoch != NO_LEADER_EPOCH else ""
    return f"from {one.fetch_offset}{epoch}"


def _describe_found(one: FetchedFromLeader) -> str:
    if one.error is not ErrorCode.none:
        return one.error.name.upper()
    epoch, end_offset = one.diverging
    if epoch != NO_LEADER_EPOCH:
        return f"diverges: epoch {epoch} ends at {end_offset}"
    return f"{_records(one.records)}, HW {one.high_watermark}"


def _describe_isr(one: Any) -> str:
    members: Iterable[Any] = one.new_isr_with_epochs
    return f"ISR {', '.join(str(int(member.broker_id)) for member in members)}"


def _records(records: bytes) -> str:
    try:
        headers = [header for _, header in batches(records)]
    except (CorruptBatch, UnsupportedMagic):
        return "damaged records"
    return f"offsets {headers[0].base_offset} to {headers[-1].last_offset}" if headers else "no records"


def _name(api_key: int) -> str:
    return "".join(word.capitalize() for word in any_api_key(api_key).name.split("_"))


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
