"""What is counted of an ingest: its options and totals, and the sent lines until they are acknowledged and
saved in the state file.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nilometer.client.ingest.source import Source
from nilometer.client.ingest.source_run import SourceRun
from nilometer.client.ingest.state_file import IngestState, encode_state, load_state, read_back
from nilometer.client.producer.batch import Deliveries
from nilometer.client.producer.producer import Producer
from nilometer.client.settings import GivenConfig
from nilometer.invariants import check
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

# The options of an ingest, and its totals.


class Oversized(enum.Enum):
    """The handling of a line that does not fit into a record of the topic."""

    FAIL = "fail"
    """Its file is not read any further; other files are."""
    SKIP = "skip"
    TRUNCATE = "truncate"
    """Its beginning is sent."""
    SPLIT = "split"
    """It is sent in pieces, one record each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    paths: Sequence[str]
    topic: str
    state_path: str
    follow: bool = False
    key_by_path: bool = False
    """Give all lines of a file the same key, and so the same partition and their order."""
    oversized: Oversized = Oversized.FAIL
    join_traces: bool = False
    """Send the lines of a trace with the line before them, in one record."""


@dataclass(slots=True)
class IngestTotals:
    lines: int = 0
    lines_there: int = 0
    """The number of lines that were in the topic already and were not sent."""
    bytes_read: int = 0
    bytes_total: int = 0
    """The sizes of the files being read, before decompression."""
    files: dict[str, int] = field(default_factory=dict[str, int])
    """File to the number of its lines sent."""
    oversized: dict[str, int] = field(default_factory=dict[str, int])
    """File to the number of its lines that fit into no record and were skipped, truncated or split."""
    holes: dict[str, int] = field(default_factory=dict[str, int])
    """File to the number of NULs before lines, which are no part of them."""
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    """File that is not read to the reason."""
    looks: int = 0
    """How often the folders were listed."""
    errors: list[str] = field(default_factory=list[str])


class LineRefused(Exception):
    """The topic rejected a line; the message names file, line and reason."""


def line_refused(path: str, line: int, error: KafkaError) -> LineRefused:
    hint = ""
    if error.code == ErrorCode.message_too_large:
        hint = (
            "; the topic's max.message.bytes was lowered, or this client may not read it: "
            "start again, or set max.request.size to it"
        )
    return LineRefused(f"{path}, line {line}: {error}{hint}")


# Tracks the sent lines until they are acknowledged, and saves the acknowledged positions in the state file.
#
# Invariants:
#
# - the state's line count of a source never includes a line that is not acknowledged;
# - the state's offset of a partition never passes the record of a line that no source's count includes.

CHECKPOINT_LINES = 50_000
CHECKPOINT_MS = 1_000


class Ledger:
    def __init__(
        self, runtime: Runtime, options: IngestOptions, producer: Producer, state: IngestState
    ) -> None:
        self.state = state
        self._runtime = runtime
        self._options = options
        self._producer = producer
        self._ends: dict[int, int] = {}
        self._sent: list[tuple[Deliveries, SourceRun, int]] = []
        self._sent_lines = 0
        self._checkpoint_ms = 0

    @classmethod
    async def open(
        cls, runtime: Runtime, options: IngestOptions, producer: Producer, connect_config: GivenConfig
    ) -> Ledger:
        """Load or create the state, read back from the topic what it does not count, and return the ledger.

        Raises KafkaError, BadState, OSError; ValueError if the state file belongs to another topic.
        """
        topic = await producer.client.topic(options.topic, producer.config.max_block_ms)
        cluster_id = producer.client.metadata.cluster_id or ""
        topic_id = str(topic.topic_id or "")
        state = load_state(runtime.disk, options.state_path)
        if state is not None and state.topic != options.topic:
            raise ValueError(
                f"{options.state_path} is the state of an ingest into topic {state.topic}; "
                f"give another file with --state for topic {options.topic}"
            )
        if state is None or (state.cluster_id, state.topic_id) != (cluster_id, topic_id):
            # Another cluster, or a topic that was created again, contains none of the lines.
            name = runtime.entropy.uuid().hex[:8]
            state = IngestState(name, cluster_id, options.topic, topic_id)
        ledger = cls(runtime, options, producer, state)
        found, ledger._ends = await read_back(runtime, connect_config, state)
        for number, lines in found.items():
            known = state.there.setdefault(number, {})
            for line, checks in lines.items():
                known.setdefault(line, set()).update(checks)
        state.partitions = dict(ledger._ends)
        state.closed = False
        await ledger.save()
        return ledger

    def on_sent(self, deliveries: Deliveries, run: SourceRun, line: int) -> None:
        """Note that records of ``run`` were sent, that of ``line`` first. The next checkpoint awaits them."""
        self._sent.append((deliveries, run, line))
        self._sent_lines += len(deliveries)

    def is_there(self, run: SourceRun, line: int, check: int) -> bool:
        """Whether a record of line number ``line`` with this checksum is in the topic already."""
        there = self.state.there.get(run.source.number)
        # With another checksum the file was rewritten since.
        return there is not None and check in there.get(line, ())

    def has_lines_of(self, run: SourceRun) -> bool:
        """Whether the topic contains lines of this source that the state does not count yet."""
        return run.source.number in self.state.there

    async def save(self) -> None:
        """Write the state file, to the end even when cancelled. Raises OSError."""
        disk, path = self._runtime.disk, self._options.state_path
        writing = asyncio.ensure_future(
            disk.offload(lambda: disk.replace_file(path, encode_state(self.state)))
        )
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing  # the thread cannot be stopped, and must not overwrite a later run's state
            raise

    def is_checkpoint_due(self) -> bool:
        waited_ms = self._runtime.clock.monotonic_ms() - self._checkpoint_ms
        return self._sent_lines >= CHECKPOINT_LINES or (bool(self._sent) and waited_ms >= CHECKPOINT_MS)

    async def close(self) -> None:
        """Mark the state as closed after the last checkpoint: the next run need not expect late appends."""
        check(not self._sent, "the last checkpoint counted everything", len(self._sent))
        self.state.closed = True
        await self.save()

    async def checkpoint(self, positions: Callable[[], Mapping[int, Source]]) -> None:
        """Wait until all sent lines are acknowledged, and save the positions if they changed.

        ``positions`` returns the sources with their positions; it is called after the acknowledgements.
        Raises LineRefused if a line was rejected, OSError.
        """
        await self._producer.flush()
        sent, self._sent, self._sent_lines = self._sent, [], 0
        for deliveries, run, line in sent:
            for index in deliveries.to_look_at():
                try:
                    place = deliveries[index].result()
                except KafkaError as error:
                    raise line_refused(run.path, line + index, error) from error
                if place.offset >= 0:
                    self._ends[place.partition] = max(self._ends.get(place.partition, 0), place.offset + 1)
        counted = dict(positions())
        if (counted, self._ends) != (self.state.sources, self.state.partitions):
            self.state.sources, self.state.partitions = counted, dict(self._ends)
            self._drop_counted()
            await self.save()
        self._checkpoint_ms = self._runtime.clock.monotonic_ms()

    def _drop_counted(self) -> None:
        """Remove from ``state.there`` the lines that the sources count now."""
        for number, lines in list(self.state.there.items()):
            source = self.state.sources.get(number)
            left = {
                line: checks for line, checks in lines.items() if source is not None and line > source.lines
            }
            if left:
                self.state.there[number] = left
            else:
                del self.state.there[number]
