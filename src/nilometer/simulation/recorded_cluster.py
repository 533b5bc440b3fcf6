"""Recorded brokers of a cluster run again, side by side: their log lines at their times, the states of their
replicas at any moment, where one of them changes, and the messages between them.

The code is the brokers' own, each in an event loop that is driven by its recording
(:mod:`nilometer.recorder.replaying`). The recordings are aligned by what the brokers told each other: bytes
arrive after they were sent, whatever the clocks of their machines said. Of all that may come next, what has
the lowest recorded time does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from typing_extensions import Buffer

from nilometer.broker.api import replicas
from nilometer.broker.broker import Broker
from nilometer.broker.connection import Connection as BrokerConnection
from nilometer.broker.process import serve
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.status_file import BrokerStatusFile
from nilometer.identifiers import TopicId
from nilometer.recorder.collection import member_bytes, members_of, read_member
from nilometer.recorder.folder import digest_of_sources
from nilometer.recorder.replaying import Replay
from nilometer.recorder.tape import UNREADABLE, Header, NotARecording
from nilometer.recorder.tape_file import is_being_written, read_recording
from nilometer.runtime import Runtime
from nilometer.simulation import recording
from nilometer.simulation.cluster_recorder import Conversation, Message, Stream
from nilometer.simulation.recorded_alignment import Survey, chains_of, shifts_of, sides_of, survey_of
from nilometer.simulation.recorded_produces import ClientConnection, Partition, Produce
from nilometer.simulation.recording import Event, Kind, RecordingWriter, Status
from nilometer.simulation.replay import Difference, ReplicaState, difference, first_state, state_of
from nilometer.wire import own_apis as wire

INTERNAL = "__"


class OtherSource(Exception):
    """A recording was made by other sources than these."""


class OtherCluster(Exception):
    """Recordings are of several clusters."""


class RecordingFile:
    """A recording of one start of a broker. Raises NotARecording and OSError."""

    def __init__(self, path: Path, member: str | None = None) -> None:
        """``member``: of a collection."""
        self.path = path
        self._member = member
        first = next(self._contents(), None)
        if first is None:
            raise NotARecording(f"{self.name} has no header")
        try:
            self.header = msgspec.msgpack.decode(first, type=Header)
        except UNREADABLE as error:
            raise NotARecording(f"{self.name} has no header: {error}") from None

    @property
    def name(self) -> str:
        return str(self.path) if self._member is None else f"{self.path}:{self._member}"

    def _contents(self) -> Iterator[bytes]:
        path = str(self.path)
        return read_recording(path) if self._member is None else read_member(path, self._member)

    def frames(self) -> Iterator[bytes]:
        """Return all frames but the header."""
        frames = self._contents()
        next(frames)
        return frames

    def check(self) -> None:
        """Read it to its end. Raises NotARecording if it is damaged or cut."""
        for _ in self._contents():
            pass

    @property
    def bytes(self) -> int:
        """How much of a disk it takes."""
        path = str(self.path)
        return self.path.stat().st_size if self._member is None else member_bytes(path, self._member)

    @property
    def is_being_written(self) -> bool:
        return self._member is None and is_being_written(str(self.path))

    @functools.cached_property
    def survey(self) -> Survey:
        return survey_of(self.frames())

    @property
    def is_of_these_sources(self) -> bool:
        return self.header.source == digest_of_sources()


def recordings_in(path: Path) -> list[RecordingFile]:
    """Open a recording, or all those of a collection. Raises NotARecording and OSError."""
    members = members_of(str(path))
    return [RecordingFile(path, one) for one in ([None] if members is None else members)]


class Change(NamedTuple):
    """A replica's state has changed, or is there for the first time; without a difference it is gone."""

    partition: str
    difference: Difference | None


class RecordedBroker:
    """One broker, as far as its recording was played."""

    def __init__(self, file: RecordingFile, *, any_source: bool = False) -> None:
        """Raises OtherSource, unless ``any_source``, and ConfigError."""
        self.header = file.header
        if not any_source and not file.is_of_these_sources:
            raise OtherSource(
                f"{file.name} was recorded by other sources, of version {self.header.version}: replay it "
                "with those, or try it with --any-source"
            )
        self.file = file
        self.config = BrokerConfig(self.header.settings)
        self.id = self.config.node_id
        self.replay = Replay(file.frames(), self.config.log_dirs)
        self.broker: Broker | None = None
        self._states: dict[str, ReplicaState] = {}
        self.topic_names: dict[TopicId, str] = {}
        self.shift_ms = 0
        """How far its wall clock must be moved to agree with that of other starts of its machine."""

    @property
    def name(self) -> str:
        return self.file.name.rpartition("/")[2]

    @property
    def survey(self) -> Survey:
        return self.file.survey

    def close(self) -> None:
        self.replay.close()

    def play(self, stop: Callable[[], bool]) -> bool:
        """Play until ``stop`` returns true; return false at the end of the recording. Raises Diverged.

        ``stop`` is asked after each callback and each event.
        """
        return self.replay.run(self._serve, self.header.open_files_max, stop)

    async def _serve(self, runtime: Runtime) -> int:
        def made(config: BrokerConfig, runtime: Runtime) -> Broker:
            self.broker = Broker(config, runtime)
            return self.broker

        return await serve(
            self.config, None, BrokerStatusFile(None), runtime, tidy=lambda _: (), make_broker=made
        )

    @property
    def now_ms(self) -> int:
        """The wall time of where it is: that of its start, and what its loop's clock has gone on."""
        if not self.has_begun:
            return self.header.started_ms
        return self.header.started_ms + self.replay.loop.now_ms - self.header.started_monotonic_ms

    @property
    def has_begun(self) -> bool:
        return self.replay.loop.now_ms > 0

    @property
    def next_ms(self) -> int:
        """The wall time of the event that comes in next, moved by ``shift_ms``."""
        return self.now_ms + self.shift_ms + (self.replay.next_delta_ms if self.has_begun else 0)

    @property
    def cluster_id(self) -> str | None:
        """The id of its cluster; None before it is known to the broker."""
        broker = self.broker
        return broker.parts.given.store.cluster_id if broker is not None and broker.has_parts else None

    def changes(self) -> list[Change]:
        """Return what has changed in the replicas since the last call."""
        broker = self.broker
        if broker is None or not broker.has_parts:
            return []
        found: list[Change] = []
        gone = dict.fromkeys(self._states)
        for partition in broker.parts.replication.replicas:
            log, name = partition.log, str(partition)
            gone.pop(name, None)
            self.topic_names[partition.key.topic_id] = partition.topic
            offsets = (log.log_start_offset, log.log_end_offset)
            now = state_of(partition.replica.role, offsets, log.epochs.entries)
            before = self._states.get(name)
            changed = first_state(name, now) if before is None else difference(name, before, now)
            if changed is not None:
                self._states[name] = now
                found.append(Change(name, changed))
        for name in gone:
            del self._states[name]
            found.append(Change(name, None))
        return found

    def principal_of(self, number: int) -> str:
        """Return who has logged in on an accepted connection."""
        protocol = self.replay.protocol(number)
        return str(protocol.context.principal) if isinstance(protocol, BrokerConnection) else ""

    def replica(self, topic: str, partition: int) -> wire.ReplicaState | None:
        """Return the state of its replica, as DescribeReplicas does; None if there is none."""
        broker = self.broker
        if broker is None or not broker.has_parts:
            return None
        parts = broker.parts
        described = replicas.Parts(
            self.config,
            parts.given.runtime,
            parts.given.tasks,
            parts.given.turns,
            parts.serving.listings,
            parts.control.metadata,
            parts.replication.replicas,
            parts.replication.moves,
            parts.cleaner.report,
            parts.given.store.cluster_id,
            parts.serving.rights,
            parts.remote_logs,
        )
        self.replay.is_looked_at = True
        try:
            return replicas.state_of_replica(described, topic, partition)
        finally:
            self.replay.is_looked_at = False


class Moment(NamedTuple):
    """Where the replay is, after a broker has done something."""

    broker: RecordedBroker
    at_ms: int
    """The broker's wall time."""
    event: str
    """What came in last."""
    changes: Sequence[Change]
    produces: Sequence[Produce]
    """Those that are wanted, and were answered, or will not be."""


class _Direction:
    """The bytes from one side of a connection between two recorded brokers to the other."""

    def __init__(self, stream: Stream, source: int, target: int) -> None:
        self.stream = stream
        self.source = source
        self.target = target
        self.sent = self.arrived = 0
        self.is_over = False
        """Whether the recording of its source has ended: no more is sent."""


class _Connection:
    def __init__(self, names: Mapping[TopicId, str], client: int, server: int) -> None:
        conversation = Conversation(names)
        self.client = client
        self.requests = _Direction(conversation.requests, client, server)
        self.responses = _Direction(conversation.responses, server, client)

    def to(self, broker: int) -> _Direction:
        return self.responses if broker == self.client else self.requests

    def of(self, broker: int) -> _Direction:
        return self.requests if broker == self.client else self.responses


class RecordedCluster:
    """Plays the recordings of several brokers, aligned. Use with ``closing``.

    Those of several starts of a broker follow each other.
    """

    def __init__(
        self,
        files: Sequence[RecordingFile],
        *,
        any_source: bool = False,
        writer: RecordingWriter | None = None,
        produces_to: Collection[Partition] = (),
    ) -> None:
        """``writer`` gets the replicas' changes and the brokers' messages, for the console, and the Produce
        requests that are wanted; ``produces_to``: their partitions.

        Raises OtherSource, ConfigError, and NotARecording for one that is damaged, wherever that is.
        """
        for file in files:
            file.check()
        self._given = [RecordedBroker(file, any_source=any_source) for file in files]
        found: dict[int, list[RecordedBroker]] = {}
        for one in self._given:
            found.setdefault(one.id, []).append(one)
        self.doubts: list[str] = []
        """What is not certain of the order of the starts."""
        self._later = [
            chain for _, starts in sorted(found.items()) for chain in chains_of(starts, self.doubts.append)
        ]
        self.starts = [one for chain in self._later for one in chain]
        """All, by their brokers, each one's in their order."""
        for one, shift_ms in zip(self.starts, shifts_of(self.starts), strict=True):
            one.shift_ms = shift_ms
        self.brokers = [chain.pop(0) for chain in self._later]
        """The present start of each, or its last one. A broker has several if its starts overlap."""
        self._writer = writer
        self.produces_to = produces_to
        self._started_ms = min(one.header.started_ms + one.shift_ms for one in self.starts)
        self._at_us = 0
        self.names: dict[TopicId, str] = {}
        """The names of the topics, by their ids."""
        self._connections = self._between_brokers() if len(found) > 1 else {}
        self._messages = 0
        self.playing: RecordedBroker | None = None
        """The broker whose code runs."""
        self._ended: set[RecordedBroker] = set()
        self._clusters: dict[RecordedBroker, str] = {}
        """The ids of the clusters, as far as they are known."""
        self._observed = {one: _Observed(self, one) for one in self.brokers}

    @property
    def down(self) -> set[int]:
        """Brokers whose present starts have all ended."""
        return {one.id for one in self.brokers} - {one.id for one in self.brokers if one not in self._ended}

    def _between_brokers(self) -> dict[tuple[RecordedBroker, int], _Connection]:
        """Return the connections whose two sides are recorded, by each side's start and number."""
        found: dict[tuple[RecordedBroker, int], _Connection] = {}
        for near, far in sides_of(self.starts):
            found[near] = found[far] = _Connection(self.names, near[0].id, far[0].id)
        return found

    def close(self) -> None:
        for one in self._given:
            one.close()

    def play(self, stop: Callable[[Moment], bool]) -> Moment | None:
        """Play until ``stop`` returns true for a moment; return it, or None at the end of all recordings.

        Raises Diverged, NotARecording and OtherCluster.
        """
        while (chosen := self._next()) is not None:
            moment = self._turn(chosen)
            if stop(moment):
                return moment
        return None

    def _next(self) -> RecordedBroker | None:
        going: list[RecordedBroker] = []
        for one, later in zip(self.brokers, self._later, strict=True):
            if one not in self._ended:
                going.append(one)
            elif later:
                going.append(later[0])
        free = [one for one in going if not self._waits(one)]
        return min(free or going, key=lambda one: one.next_ms, default=None)

    def _waits(self, broker: RecordedBroker) -> bool:
        """Whether bytes come in next that another recording has not sent yet, but may."""
        arrival = broker.replay.next_arrival if broker.replay.is_at_event else None
        connection = None if arrival is None else self._observed[broker].connections.get(arrival[0])
        if arrival is None or connection is None:
            return False
        direction = connection.to(broker.id)
        if direction.is_over:
            return False
        return direction.arrived + arrival[1] > direction.sent

    def _turn(self, broker: RecordedBroker) -> Moment:
        """Let one event in, and run the callbacks up to the next one."""
        self.playing = broker
        if broker not in self.brokers:
            self._begin_again(broker)
        goes_on = broker.play(lambda: broker.replay.is_at_event)
        if broker not in self._clusters:
            self._note_cluster(broker)
        at_ms = broker.now_ms
        self._at_us = max(self._at_us, (at_ms + broker.shift_ms - self._started_ms) * 1_000)
        changes = broker.changes()
        self.names.update(broker.topic_names)
        for change in changes:
            self._note_change(broker, change)
        for kind, direction, told in self._observed[broker].take():
            for number, message in told:
                self._note_message(kind, direction, number, message)
        if not goes_on:
            self._ended.add(broker)
            self._note_end(broker)
        produces = self._observed[broker].take_produces()
        for one in produces:
            self._add(kind=Kind.NOTE, text=one.text, broker=broker.id, partitions=(one.partition,))
        return Moment(broker, at_ms, broker.replay.newest_event, changes, produces)

    def _note_cluster(self, broker: RecordedBroker) -> None:
        """Raises OtherCluster."""
        if (cluster_id := broker.cluster_id) is None:
            return
        self._clusters[broker] = cluster_id
        first, of_first = next(iter(self._clusters.items()))
        if cluster_id != of_first:
            raise OtherCluster(
                f"{broker.file.name} is of the cluster {cluster_id}, and {first.file.name} of {of_first}: "
                "replay them apart"
            )

    def _begin_again(self, broker: RecordedBroker) -> None:
        """Let the next start take the place of the one before, whose last state was there until now."""
        (at,) = (index for index, later in enumerate(self._later) if broker in later)
        self._later[at].remove(broker)
        self.brokers[at] = broker
        self._observed[broker] = _Observed(self, broker)
        self._add(kind=Kind.BROKER, text="starts again", broker=broker.id, status=Status.RUNNING)

    # --- what the console shows

    def next_number(self) -> int:
        self._messages += 1
        return self._messages

    def connection(self, broker: RecordedBroker, number: int) -> _Connection | None:
        """Return the connection, if both of its sides are recorded."""
        return self._connections.get((broker, number))

    def _note_change(self, broker: RecordedBroker, change: Change) -> None:
        if change.partition.startswith(INTERNAL):
            return
        found = change.difference
        text = f"removes its replica of {change.partition}" if found is None else found.text
        self._add(
            kind=Kind.REMOVED if found is None else found.kind,
            text=text,
            broker=broker.id,
            partitions=(change.partition,),
            change=None if found is None else found.change,
        )

    def _note_message(self, kind: Kind, direction: _Direction, number: int, message: Message) -> None:
        self._add(
            kind=kind,
            text=message.text,
            broker=direction.source,
            to=direction.target,
            message=number,
            partitions=message.partitions,
        )

    def _note_end(self, broker: RecordedBroker) -> None:
        self._observed[broker].on_end()
        ended = broker.replay.ended
        text = "the recording breaks off here: the process was killed" if ended is None else ended
        is_down = broker.id in self.down
        text, status = (text, Status.DOWN) if is_down else (f"another process: {text}", Status.RUNNING)
        self._add(kind=Kind.BROKER, text=text, broker=broker.id, status=status)
        for connection in self._observed[broker].connections.values():
            connection.of(broker.id).is_over = True  # what it has sent may arrive yet
            direction = connection.to(broker.id)
            for number, message in direction.stream.on_dropped():
                self._note_message(Kind.DROPPED, direction, number, message)

    def _add(self, **fields: Any) -> None:
        if self._writer is not None:
            self._writer.add(Event(at_us=self._at_us, **fields))

    def end(self) -> None:
        if self._writer is not None:
            self._writer.end([Event(at_us=self._at_us, kind=Kind.NOTE, text="The recordings end here.")])


class _Observed:
    """The connections of one broker to others that are recorded, too, and what was said on them; and those of
    clients, if their Produce requests are wanted."""

    def __init__(self, cluster: RecordedCluster, broker: RecordedBroker) -> None:
        self._cluster = cluster
        self._broker = broker
        self.connections: dict[int, _Connection] = {}
        self._told: list[tuple[Kind, _Direction, list[tuple[int, Message]]]] = []
        self._clients: dict[int, ClientConnection] = {}
        self._produces: list[Produce] = []
        broker.replay.observer = self

    def take(self) -> list[tuple[Kind, _Direction, list[tuple[int, Message]]]]:
        told, self._told = self._told, []
        return told

    def take_produces(self) -> Sequence[Produce]:
        produces, self._produces = self._produces, []
        return produces

    def on_end(self) -> None:
        for client in self._clients.values():
            self._produces += client.on_lost()
        self._clients.clear()

    def on_made(self, number: int, extra: Mapping[str, Any], *, is_accepted: bool) -> None:
        connection = self._cluster.connection(self._broker, number)
        if connection is not None:
            self.connections[number] = connection
        elif is_accepted and self._cluster.produces_to:
            host, port = (extra["peername"] or ("", 0))[:2]
            self._clients[number] = ClientConnection(
                self._cluster.produces_to,
                self._cluster.names,
                f"{host}:{port}",
                lambda: self._broker.principal_of(number),
            )

    def on_sent(self, number: int, parts: Sequence[Buffer]) -> None:
        if (client := self._clients.get(number)) is not None:
            self._produces += client.on_sent(b"".join(map(bytes, parts)), self._broker.now_ms)
        connection = self.connections.get(number)
        if connection is None:
            return
        direction = connection.of(self._broker.id)
        data = b"".join(bytes(part) for part in parts)
        direction.sent += len(data)
        self._told.append((Kind.SENT, direction, direction.stream.on_sent(data, self._cluster.next_number)))

    def on_arrived(self, number: int, data: bytes) -> None:
        if (client := self._clients.get(number)) is not None:
            self._produces += client.on_arrived(data, self._broker.now_ms)
        connection = self.connections.get(number)
        if connection is None:
            return
        direction = connection.to(self._broker.id)
        direction.arrived += len(data)
        unknown = direction.arrived - direction.sent
        if direction.is_over and unknown > 0:  # its source did more than its recording has
            direction.sent += unknown
            sent = direction.stream.on_sent(data[-unknown:], self._cluster.next_number)
            self._told.append((Kind.SENT, direction, sent))
        self._told.append((Kind.DELIVERED, direction, direction.stream.on_arrived(len(data))))

    def on_lost(self, number: int) -> None:
        if (client := self._clients.pop(number, None)) is not None:
            self._produces += client.on_lost()
        connection = self.connections.pop(number, None)
        if connection is not None:
            direction = connection.to(self._broker.id)
            self._told.append((Kind.DROPPED, direction, direction.stream.on_dropped()))


def console_header(files: Sequence[RecordingFile]) -> recording.Header:
    brokers = {int(BrokerConfig(file.header.settings).node_id) for file in files}
    return recording.Header(
        title="Recorded brokers",
        description=", ".join(file.name.rpartition("/")[2] for file in files),
        names={number: f"broker {number}" for number in sorted(brokers)},
    )
