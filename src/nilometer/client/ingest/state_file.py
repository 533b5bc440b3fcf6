"""Which lines of a source are in the topic already: by the state that the last run saved, and by reading the
topic.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.ingest.found_files import Identity
from nilometer.client.ingest.source import Fingerprint, Source
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offset_queries import READ_UNCOMMITTED, list_offsets, log_end_offsets
from nilometer.client.positions import LATEST_TIMESTAMP
from nilometer.client.settings import GivenConfig
from nilometer.runtime import Disk, Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

# The state of an ingest between its runs: one JSON file that is replaced as a whole.
#
# The file is written *before* the first line of a new source is sent, and at each checkpoint, after the
# acknowledgements. So each record in the topic comes from a source of the state. If its line is neither
# counted by the source nor among the lines ``there``, its offset is at or after the state's offset of its
# partition.

VERSION = 2
READABLE_VERSIONS = (1, 2)
"""Version 1 lacks ``watched``, ``may_be_unread`` and ``there``."""

LinesThere = dict[int, dict[int, set[int]]]
"""Source number to the lines that are in the topic but not counted: line number to CRCs of its records."""


class BadState(ValueError):
    """The state file is invalid; the message says why and what to do."""


@dataclass(slots=True)
class IngestState:
    name: str
    """Random; distinguishes the records of this ingest from those of others in the same topic."""
    cluster_id: str
    topic: str
    topic_id: str
    partitions: dict[int, int] = field(default_factory=dict[int, int])
    """Partition to the offset from which there may be lines that the sources do not count yet."""
    sources: dict[int, Source] = field(default_factory=dict[int, Source])
    next_number: int = 0
    closed: bool = False
    """Whether the last run ended with all lines acknowledged and counted, and no request in flight."""
    there: LinesThere = field(default_factory=dict[int, dict[int, set[int]]])
    """Lines before the offsets of ``partitions`` that the sources do not count yet."""
    watched: set[str] = field(default_factory=set[str])
    """Named files and folders that an earlier look has listed: unknown files there are newer than that."""
    may_be_unread: set[Identity] = field(default_factory=set[Identity])
    """Files made by a rotation of which it is not known yet whether they are copies."""

    def tag(self, number: int) -> bytes:
        """Return the ``source`` header of the records of source ``number``."""
        return f"{self.name}-{number}".encode()

    def number_of(self, tag: bytes) -> int | None:
        """Return the source number in a ``source`` header; None if it is another ingest's."""
        name, _, number = tag.decode("utf-8", "replace").rpartition("-")
        return int(number) if name == self.name and number.isdecimal() else None

    def add(self, path: str, device: int, inode: int, birth_ns: int = 0) -> Source:
        """Add a source with the next number, and return it."""
        source = Source(self.next_number, path, device, inode, birth_ns=birth_ns)
        self.next_number += 1
        self.sources[source.number] = source
        return source


def encode_state(state: IngestState) -> bytes:
    document = {
        "version": VERSION,
        "name": state.name,
        "cluster_id": state.cluster_id,
        "topic": state.topic,
        "topic_id": state.topic_id,
        "partitions": {str(partition): offset for partition, offset in sorted(state.partitions.items())},
        "next_number": state.next_number,
        "closed": state.closed,
        "there": {
            str(number): {str(line): sorted(checks) for line, checks in lines.items()}
            for number, lines in sorted(state.there.items())
        },
        "watched": sorted(state.watched),
        "may_be_unread": sorted(state.may_be_unread),
        "sources": [_entry(source) for _, source in sorted(state.sources.items())],
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _entry(source: Source) -> dict[str, Any]:
    return {
        "number": source.number,
        "path": source.path,
        "device": source.device,
        "inode": source.inode,
        "offset": source.offset,
        "head": source.fingerprint.head,
        "tail": source.fingerprint.tail,
        "preview": [source.preview.offset, source.preview.head, source.preview.tail],
        "lines": source.lines,
        "finished": source.finished,
        "read_at": source.read_at,
        "birth_ns": source.birth_ns,
        "skipped": source.skipped,
        "truncated": source.truncated,
        "gone_ms": source.gone_ms,
    }


def decode_state(data: bytes, origin: str) -> IngestState:
    """Decode a state file; ``origin`` names it in errors. Raises BadState."""
    try:
        document = json.loads(data)
        if document["version"] not in READABLE_VERSIONS:
            raise BadState(
                f"{origin} is of version {document['version']}, this program knows up to {VERSION}; "
                "use a newer program, or give another file with --state"
            )
        sources = [_source(entry) for entry in document["sources"]]
        return IngestState(
            name=str(document["name"]),
            cluster_id=str(document["cluster_id"]),
            topic=str(document["topic"]),
            topic_id=str(document["topic_id"]),
            partitions={int(number): int(offset) for number, offset in document["partitions"].items()},
            sources={source.number: source for source in sources},
            next_number=int(document["next_number"]),
            closed=bool(document.get("closed", False)),  # missing in older states
            there={
                int(number): {int(line): {int(check) for check in checks} for line, checks in lines.items()}
                for number, lines in document.get("there", {}).items()
            },
            watched={str(path) for path in document.get("watched", ())},
            may_be_unread={(int(device), int(inode)) for device, inode in document.get("may_be_unread", ())},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, BadState):
            raise
        raise BadState(
            f"{origin} is not a state of nilometer ingest ({type(error).__name__}: {error}); "
            "give another file with --state, or remove it to read everything from the beginning"
        ) from error


def _source(entry: dict[str, Any]) -> Source:
    size, head, tail = entry["preview"]
    read_at, gone_ms = entry.get("read_at"), entry.get("gone_ms")
    return Source(
        number=int(entry["number"]),
        path=str(entry["path"]),
        device=int(entry["device"]),
        inode=int(entry["inode"]),
        fingerprint=Fingerprint(int(entry["offset"]), str(entry["head"]), str(entry["tail"])),
        preview=Fingerprint(int(size), str(head), str(tail)),
        lines=int(entry["lines"]),
        finished=bool(entry["finished"]),
        read_at=(int(read_at[0]), int(read_at[1])) if read_at else None,
        birth_ns=int(entry.get("birth_ns", 0)),
        skipped=bool(entry.get("skipped", False)),
        truncated=bool(entry.get("truncated", False)),
        gone_ms=int(gone_ms) if gone_ms is not None else None,
    )


def load_state(disk: Disk, path: str) -> IngestState | None:
    """Return the state in file ``path``, or None if there is no such file. Raises BadState."""
    return decode_state(disk.read_file(path), path) if disk.exists(path) else None


# Reads the topic to find the lines that are in it already but not counted in the state.
#
# A process may die after an acknowledgement and before the state is saved, and a batch may be in the log
# though its acknowledgement never arrived. The headers of a record name its source and line. Records in a
# leader's log that are not committed yet are waited for.

# Waits until everything that an earlier run sent to a topic is readable, or is lost.
#
# A record can be in a leader's log and not yet below its high watermark: a follower lags or has stopped.
# Reading up to the high watermark would miss it, and the line would be sent again. So the log end offset of
# each leader is queried too, and the high watermark must reach it. A change of leader may truncate the log,
# so the target is never above the present leader's log end offset.
#
# A killed process can also leave Produce requests that a broker has received but not yet appended: the broker
# was paused, or it processes a connection's requests one after the other. Nothing in the protocol shows when
# the last of them is done (a fence would need a record in each partition, or a transaction). So after a run
# that was not closed, the ends must be committed in several queries in a row, some time apart.

COMMIT_TIMEOUT_MS = 120_000
"""The maximum wait for the high watermarks; a follower that has stopped leaves the ISR long before."""
LOOK_MS = 100
LOOKS_AFTER_CRASH = 5

Ends = dict[TopicPartition, int]


class CommittedEnds:
    """Decides, from queries of log end offsets and high watermarks, whether all is committed. Pure.

    Invariant: ``behind`` is empty after a query only if every record that the previous query (or, if it is
    the first, this one) found in a leader's log is readable, or was truncated.
    """

    def __init__(self, looks_needed: int) -> None:
        self.behind: dict[TopicPartition, tuple[int, int]] = {}
        """High watermark and target offset of each partition that was not committed in the last query."""
        self._targets: Ends = {}
        self._looks_needed = looks_needed
        self._looks = 0

    def on_look(self, log_ends: Ends, high_watermarks: Ends) -> bool:
        """Take one query's results; return whether everything is committed in enough queries in a row.

        ``log_ends`` must have been queried before ``high_watermarks``.
        """
        targets = {one: min(self._targets.get(one, end), end) for one, end in log_ends.items()}
        self.behind = {
            one: (high_watermarks[one], target)
            for one, target in targets.items()
            if high_watermarks[one] < target
        }
        if self.behind:
            self._targets, self._looks = targets, 0
            return False
        self._targets = dict(log_ends)
        self._looks += 1
        return self._looks >= self._looks_needed


async def wait_committed_ends(
    client: Client, partitions: Sequence[TopicPartition], *, after_crash: bool
) -> Ends:
    """Wait until the high watermarks have reached the log end offsets, and return them.

    ``after_crash``: the earlier run was not closed, so several queries must agree. Raises KafkaError if this
    takes too long.
    """
    clock = client.runtime.clock
    deadline_ms = clock.monotonic_ms() + COMMIT_TIMEOUT_MS
    ends = CommittedEnds(LOOKS_AFTER_CRASH if after_crash else 1)
    while True:
        left_ms = max(deadline_ms - clock.monotonic_ms(), 1)
        log_ends = await log_end_offsets(client, partitions, left_ms)
        latest = dict.fromkeys(partitions, LATEST_TIMESTAMP)
        found = await list_offsets(client, latest, READ_UNCOMMITTED, left_ms)
        high_watermarks = {partition: one.offset for partition, one in found.items()}
        if ends.on_look(log_ends, high_watermarks):
            return high_watermarks
        if clock.monotonic_ms() >= deadline_ms:
            raise _not_committed(ends.behind)
        await asyncio.sleep(LOOK_MS / 1000)


def _not_committed(behind: dict[TopicPartition, tuple[int, int]]) -> KafkaError:
    where = ", ".join(
        f"{partition} is committed up to {high_watermark} of {end}"
        for partition, (high_watermark, end) in sorted(behind.items())
    )
    return KafkaError(
        ErrorCode.request_timed_out,
        f"{where} after {COMMIT_TIMEOUT_MS // 1000} s: in-sync replicas are missing; "
        "lines sent before may be among these records, and may be written again",
    )


POLL_TIMEOUT_MS = 30_000
SOURCE_HEADER = "source"
PATH_HEADER = "path"
LINE_HEADER = "line"
PIECE_HEADER = "piece"
"""The header with the number of a piece of a long line, from 1; its pieces have the same ``line`` header."""


def checksum(value: bytes, piece: bytes = b"") -> int:
    """Return a checksum of a record's value and piece number.

    It distinguishes records with the same line number: pieces, and lines of a file that was rewritten.
    """
    return zlib.crc32(value, zlib.crc32(piece))


async def read_back(
    runtime: Runtime, config: GivenConfig, state: IngestState
) -> tuple[LinesThere, dict[int, int]]:
    """Return the uncounted lines in the topic from the state's offsets on, and the end of each partition.

    First waits until all records of the leaders' logs are committed. Raises KafkaError.
    """
    there: LinesThere = {}
    settings = {**config, "auto.offset.reset": "earliest", "max.poll.records": 5000}
    async with Consumer(runtime, settings) as consumer:
        partitions = await consumer.partitions_for(state.topic)
        if not state.sources:  # nothing was ever sent from it
            ends = await consumer.end_offsets(partitions)
            return there, {one.partition: end for one, end in ends.items()}
        ends = await wait_committed_ends(consumer.client, partitions, after_crash=not state.closed)
        starts = await consumer.beginning_offsets(partitions)
        begins = {one: max(state.partitions.get(one.partition, 0), starts[one]) for one in partitions}
        left = {one: ends[one] for one in partitions if begins[one] < ends[one]}
        consumer.assign(left)
        for partition in left:
            consumer.seek(partition, begins[partition])
        while left:
            records = await consumer.poll(timeout_ms=POLL_TIMEOUT_MS)
            if not records:
                raise _stuck(left)
            for record in records:
                _note(there, state, record)
            for partition in list(left):
                if await consumer.position(partition) >= left[partition]:
                    del left[partition]
    return there, {one.partition: end for one, end in ends.items()}


def _note(there: LinesThere, state: IngestState, record: ConsumerRecord) -> None:
    named = dict(record.headers)
    tag, line = named.get(SOURCE_HEADER), named.get(LINE_HEADER)
    if tag is None or line is None or not line.isdigit():
        return
    number = state.number_of(tag)
    source = state.sources.get(number) if number is not None else None
    if source is not None and int(line) > source.lines:
        check = checksum(record.value or b"", named.get(PIECE_HEADER) or b"")
        there.setdefault(source.number, {}).setdefault(int(line), set()).add(check)


def _stuck(left: dict[TopicPartition, int]) -> KafkaError:
    names = ", ".join(str(partition) for partition in left)
    return KafkaError(
        ErrorCode.request_timed_out,
        f"no records of {names} in {POLL_TIMEOUT_MS // 1000} s, although there should be some",
    )
