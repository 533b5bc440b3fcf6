"""A recorded broker runs again: its log lines at their times, its replicas' states at any moment, and where
one of them changes.

The code is the broker's own, in an event loop that is driven by the recording
(:mod:`nilometer.recorder.replaying`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from nilometer.broker.broker import Broker
from nilometer.broker.process import serve
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.status_file import BrokerStatusFile
from nilometer.recorder import tape as kinds
from nilometer.recorder.folder import digest_of_sources
from nilometer.recorder.replaying import Diverged, Replay
from nilometer.recorder.tape import Header, NotARecording, read_frames
from nilometer.runtime import Runtime
from nilometer.simulation.replay import Difference, ReplicaState, difference, first_state, state_of


class OtherSource(Exception):
    """A recording was made by other sources than these."""


class Change(NamedTuple):
    """A replica's state has changed, or is there for the first time."""

    partition: str
    difference: Difference


class Looked(NamedTuple):
    """Where the replay is."""

    wall_ms: int
    """The newest wall time that the broker was told."""
    entries: int
    callbacks: int
    event: str
    """The newest event."""


class RecordingFile:
    """A recording of one start of a broker. Raises NotARecording and OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        frames = read_frames(str(path))
        first = next(frames, None)
        if first is None:
            raise NotARecording(f"{path} has no header")
        self.header = msgspec.msgpack.decode(first, type=Header)

    def frames(self) -> Iterator[bytes]:
        """Return all frames but the header."""
        frames = read_frames(str(self.path))
        next(frames)
        return frames

    @property
    def is_of_these_sources(self) -> bool:
        return self.header.source == digest_of_sources()


class ReplayedBroker:
    """Plays one recording, once."""

    def __init__(self, recording: RecordingFile, *, any_source: bool = False) -> None:
        """Raises OtherSource, unless ``any_source``."""
        if not any_source and not recording.is_of_these_sources:
            raise OtherSource(
                f"{recording.path} was recorded by other sources of version {recording.header.version}"
            )
        self._header = recording.header
        self.config = BrokerConfig(self._header.settings)
        self.replay = Replay(recording.frames(), self.config.log_dirs)
        self.broker: Broker | None = None
        self._states: dict[str, ReplicaState] = {}

    def play(self, stop: Callable[[], bool]) -> bool:
        """Play until ``stop`` returns true; return false at the end of the recording. Raises Diverged.

        ``stop`` is asked after each callback and each event.
        """
        return self.replay.run(self._serve, self._header.open_files_max, stop)

    def close(self) -> None:
        self.replay.close()

    async def _serve(self, runtime: Runtime) -> int:
        def made(config: BrokerConfig, runtime: Runtime) -> Broker:
            self.broker = Broker(config, runtime)
            return self.broker

        return await serve(
            self.config, None, BrokerStatusFile(None), runtime, tidy=lambda _: (), make_broker=made
        )

    @property
    def where(self) -> Looked:
        return Looked(
            self.replay.clock_last[kinds.WALL],
            self.replay.tape.entries,
            self.replay.loop.executed,
            self.replay.newest_event,
        )

    def changes(self) -> list[Change]:
        """Return what has changed in the replicas since the last call."""
        broker = self.broker
        if broker is None or not broker.has_parts:
            return []
        found: list[Change] = []
        for partition in broker.parts.replication.replicas:
            log, name = partition.log, str(partition)
            offsets = (log.log_start_offset, log.log_end_offset)
            now = state_of(partition.replica.role, offsets, log.epochs.entries)
            before = self._states.get(name)
            changed = first_state(name, now) if before is None else difference(name, before, now)
            if changed is not None:
                self._states[name] = now
                found.append(Change(name, changed))
        return found


class RecordedTimes(logging.Formatter):
    """Formats log lines with the times at which they were written first."""

    def __init__(self, replayed: ReplayedBroker) -> None:
        super().__init__(f"%(asctime)s %(levelname)s [broker {replayed.config.node_id}] %(message)s")
        self._replayed = replayed

    def format(self, record: logging.LogRecord) -> str:
        wall_ms = self._replayed.where.wall_ms
        record.created, record.msecs = wall_ms / 1000, wall_ms % 1000
        return super().format(record)


__all__ = ["Change", "Diverged", "Looked", "OtherSource", "RecordedTimes", "RecordingFile", "ReplayedBroker"]
