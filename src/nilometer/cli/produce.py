"""``nilometer produce``: sends lines, JSON lines, whole files or a tombstone as records.

What is read becomes records, which are sent, and what became of each is counted. A file, a pipe or a terminal
is read without blocking the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, cast

import click
import msgspec

from nilometer.cli import commands
from nilometer.cli.cluster_options import (
    client_config,
    connection_options,
    json_option,
    parse_list,
    parse_pairs,
    print_json,
    property_option,
    run_async,
)
from nilometer.cli.commands import INT32_MAX, INT64_MAX, PARTITION
from nilometer.client.ingest.line_splitter import LINE_BYTES_MAX, LineSplitter, LineTooLong, whole_lines
from nilometer.client.network.client import no_such_topic, topic_exists
from nilometer.client.producer.batch import Delivery
from nilometer.client.producer.producer import Producer
from nilometer.client.producer.producer_settings import COMPRESSION_TYPES
from nilometer.client.settings import GivenConfig
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

# The records of lines that `nilometer produce` reads: plain lines, and JSON lines. Pure.
#
# A JSON line has the form that ``nilometer consume --json`` prints, so a topic can be copied with its keys,
# headers, timestamps and nulls; the fields that only a broker can set are ignored.

Headers = tuple[tuple[str, bytes | None], ...]
_DECODER = json.JSONDecoder()
_OF_THE_BROKER = ("topic", "offset", "timestamp_type", "leader_epoch")
_FIELDS = ("key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp")


class BadInput(ValueError):
    """A line or file that is no record; the message says why."""


class InputRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None
    """In milliseconds; None: the time at which it is sent."""


class PlainLines(msgspec.Struct, frozen=True):
    """How a line is a record: the key before a separator, and the text that stands for null."""

    separator: bytes | None = None
    null_marker: bytes | None = None
    key: bytes | None = None
    """The key of every record."""

    def record(self, line: bytes) -> InputRecord:
        """Raises BadInput for a line without the separator."""
        key, value = self.key, line
        if self.separator is not None:
            key, found, value = line.partition(self.separator)
            if not found:
                raise BadInput(f"no key: {os.fsdecode(self.separator)!r} is not in it")
        return InputRecord(self._or_null(key), self._or_null(value))

    def _or_null(self, text: bytes | None) -> bytes | None:
        return None if text is not None and text == self.null_marker else text


def json_record(line: bytes) -> InputRecord:
    """Return the record of a JSON object with the fields of ``_FIELDS``; ``value`` is required.

    A value or key that is no string is written as its text in the line, byte for byte: 1.10 stays 1.10. Null
    is null. Raises BadInput.
    """
    try:
        text = line.decode(json.detect_encoding(line), "surrogatepass")
        document: Any = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"it is not JSON: {error}") from None
    if not isinstance(document, _Object):
        raise BadInput("it is not a JSON object")
    document.check("it")
    for name in document:
        if name not in _FIELDS and name not in _OF_THE_BROKER:
            raise BadInput(f"{name!r} is none of the fields {', '.join(_FIELDS)}")
    if "value" not in document and "value_base64" not in document:
        raise BadInput('it has no "value" (null makes a tombstone)')
    return InputRecord(
        _bytes_of_field(document, text, "key"),
        _bytes_of_field(document, text, "value"),
        _headers(document.get("headers"), text),
        _number(document, "partition", INT32_MAX),
        _number(document, "timestamp", INT64_MAX),
    )


class _Object(dict[str, Any]):
    """A JSON object that knows whether a name was repeated: then all but the last value are not in it."""

    repeated: str | None = None

    def check(self, what: str) -> None:
        """Raise BadInput for a repeated name."""
        if self.repeated is not None:
            raise BadInput(f'{what} has "{self.repeated}" twice')


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        found.repeated = next(name for name in names if names.count(name) > 1)
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _bytes_of_field(fields: Mapping[str, Any], line: str, name: str, *below: str | int) -> bytes | None:
    """Return the bytes of a field. ``below``: where ``fields`` are in the line."""
    encoded = fields.get(f"{name}_base64")
    if encoded is None:
        return _text(fields.get(name), line, *below, name)
    if name in fields:
        raise BadInput(f'it has both "{name}" and "{name}_base64"')
    try:
        return base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError) as error:
        raise BadInput(f'"{name}_base64" is not base64: {error}') from None


def _text(value: Any, line: str, *path: str | int) -> bytes | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else _text_at(line, path)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadInput(f'"{".".join(map(str, path))}" has a surrogate that no UTF-8 text has') from None


def _text_at(line: str, path: Sequence[str | int]) -> str:
    """Return the text of a value in a JSON document: the names and indexes of ``path`` lead to it."""
    begin, end = _after_space(line, 0), len(line)
    for wanted in path:
        begin, end = next(span for name, *span in _values(line, begin) if name == wanted)
    return line[begin:end]


def _values(line: str, at: int) -> Iterator[tuple[str | int, int, int]]:
    """Yield name or index, begin and end of each value in the JSON object or array that begins at ``at``."""
    is_object, index = line[at] == "{", 0
    at = _after_space(line, at + 1)
    while line[at] not in "}]":
        name: str | int = index
        if is_object:
            name, at = _DECODER.raw_decode(line, at)
            at = _after_space(line, _after_space(line, at) + 1)  # behind the colon
        _, end = _DECODER.raw_decode(line, at)
        yield name, at, end
        at, index = _after_space(line, end), index + 1
        if line[at] == ",":
            at = _after_space(line, at + 1)


def _after_space(line: str, at: int) -> int:
    while at < len(line) and line[at] in " \t\n\r":
        at += 1
    return at


def _headers(found: Any, line: str) -> Headers:
    if found is None:
        return ()
    if isinstance(found, _Object):
        found.check('"headers"')
        return tuple((name, _text(value, line, "headers", name)) for name, value in found.items())
    if not isinstance(found, list):
        raise BadInput('"headers" is neither an object nor a list of {"name", "value"}')
    headers: list[tuple[str, bytes | None]] = []
    for index, one in enumerate(cast("list[Any]", found)):
        header = one if isinstance(one, _Object) else _Object()
        name = header.get("name")
        if not isinstance(name, str) or set(header) - {"name", "value", "value_base64"}:
            raise BadInput('an element of "headers" is not {"name": …, "value": …}')
        header.check('an element of "headers"')
        headers.append((name, _bytes_of_field(header, line, "value", "headers", index)))
    return tuple(headers)


def _number(fields: Mapping[str, Any], name: str, largest: int) -> int | None:
    value = fields.get(name)
    if value is None or (name == "timestamp" and value == -1):  # -1: a record without a timestamp
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise BadInput(f'"{name}" is not a number from 0 to {largest}')
    return value


# Reads lines from a file, a pipe or a terminal without blocking the event loop.

CHUNK_BYTES = 256 * 1024


async def input_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yield lists of lines as they arrive; the last line may lack its newline.

    Raises LineTooLong, OSError.
    """
    splitter = LineSplitter(is_exact=True)
    async for chunk in input_chunks(descriptor):
        if lines := whole_lines(splitter.feed(chunk)):
            yield lines
    last = splitter.finish()
    if last is not None:
        yield whole_lines([last])


async def input_chunks(descriptor: int) -> AsyncIterator[bytes]:
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)):
        while chunk := os.read(descriptor, CHUNK_BYTES):  # reading a regular file does not wait
            yield chunk
        return
    reader = asyncio.StreamReader(limit=CHUNK_BYTES)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(descriptor), "rb", buffering=0)
    )
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            yield chunk
    finally:
        transport.close()
        os.set_blocking(descriptor, True)  # shared with the parent process


# What ``nilometer produce`` reads: the lines of files and of standard input, or whole files.

STANDARD_INPUT = "-"
FILE_BYTES_MAX = LINE_BYTES_MAX


class Item(NamedTuple):
    """A line or a whole file."""

    data: bytes
    path: str
    line: int = 0
    """The number of the line; 0 for a whole file."""

    @property
    def place(self) -> str:
        name = "the input" if self.path == STANDARD_INPUT else self.path
        return f"line {self.line} of {name}" if self.line else name


Items = AsyncIterator[list[Item]]


async def lines_of(paths: Sequence[str]) -> Items:
    """Yield the lines of files as they arrive. Raises BadInput for a huge line, OSError."""
    for path in paths:
        number = 0
        with _opened(path) as descriptor:
            try:
                async for lines in input_lines(descriptor):
                    yield [Item(line, path, index) for index, line in enumerate(lines, start=number + 1)]
                    number += len(lines)
            except LineTooLong as error:
                raise BadInput(f"{Item(b'', path, number + 1).place}: {error}") from None


async def whole_files(paths: Sequence[str]) -> Items:
    """Yield the contents of each file. Raises BadInput for a huge file, OSError."""
    for path in paths:
        parts: list[bytes] = []
        size = 0
        with _opened(path) as descriptor:
            async for chunk in input_chunks(descriptor):
                size += len(chunk)
                if size > FILE_BYTES_MAX:
                    raise BadInput(f"{Item(b'', path).place} is larger than {FILE_BYTES_MAX} bytes")
                parts.append(chunk)
        yield [Item(b"".join(parts), path)]


async def no_data() -> Items:
    """Yield one empty item: for a record that is given by options alone."""
    yield [Item(b"", STANDARD_INPUT)]


@contextmanager
def _opened(path: str) -> Generator[int, None, None]:
    if path == STANDARD_INPUT:
        yield sys.stdin.fileno()
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# Sends the records that ``nilometer produce`` reads, and counts what became of them.

Parse = Callable[[bytes], InputRecord]
"""Makes a record of a line or file. Raises BadInput."""

_OF_ONE_RECORD = (ErrorCode.message_too_large, ErrorCode.unknown_topic_or_partition)


class Target(msgspec.Struct, frozen=True):
    topic: str
    partition: int | None
    """The partition of every record; None: chosen by the record."""
    headers: tuple[tuple[str, bytes | None], ...]
    """Headers of every record, before its own."""
    create: bool
    """Whether a missing topic is created, with the brokers' defaults, for the first record."""


@dataclass(slots=True)
class Outcome:
    partitions: Counter[int] = field(default_factory=Counter[int])
    failed: int = 0
    first_error: KafkaError | None = None
    created: bool = False
    stopped_by: str | None = None
    """Why the input was not read to its end."""

    @property
    def written(self) -> int:
        return self.partitions.total()

    def count(self, delivery: Delivery) -> None:
        try:
            self.partitions[delivery.result().partition] += 1
        except KafkaError as error:
            self.failed += 1
            if self.first_error is None:
                self.first_error = error


async def produce_items(items: Items, parse: Parse, target: Target, config: GivenConfig) -> Outcome:
    """Send the records of ``items``, and wait until they are acknowledged. Raises KafkaError, OSError.

    A line that is no record ends the input; the records before it are written.
    """
    outcome = Outcome()
    async with Producer(Runtime.system(), config) as producer:
        may_create, producer.client.auto_create_topics = producer.client.auto_create_topics, False
        exists = await topic_exists(producer.client, target.topic, producer.config.max_block_ms)
        if not exists and not (target.create and may_create):
            raise no_such_topic(target.topic)
        try:
            async for some in items:
                for item in some:
                    record = _record(item, parse)
                    if not exists:
                        await _create(producer, target.topic)
                        exists = outcome.created = True
                    delivery = await _send(producer, item, record, target)
                    delivery.add_done_callback(outcome.count)
        except BadInput as error:
            outcome.stopped_by = str(error)
        await producer.flush()
    return outcome


def _record(item: Item, parse: Parse) -> InputRecord:
    try:
        return parse(item.data)
    except BadInput as error:
        raise BadInput(f"{item.place}: {error}") from None


async def _send(producer: Producer, item: Item, record: InputRecord, target: Target) -> Delivery:
    partition = record.partition if target.partition is None else target.partition
    try:
        return await producer.send(
            target.topic,
            record.value,
            key=record.key,
            headers=(*target.headers, *record.headers),
            partition=partition,
            timestamp=record.timestamp,
        )
    except KafkaError as error:
        if error.code in _OF_ONE_RECORD:
            raise BadInput(f"{item.place}: {error}") from error
        raise


async def _create(producer: Producer, topic: str) -> None:
    """Have a broker create the topic, and say so. Raises KafkaError if the brokers create none."""
    client, timeout_ms = producer.client, producer.config.max_block_ms
    client.auto_create_topics = True
    await client.refresh()
    client.auto_create_topics = False
    if not await topic_exists(client, topic, timeout_ms):
        code = client.topic_errors.get(topic, ErrorCode.unknown_topic_or_partition)
        raise KafkaError(
            code,
            f"topic {topic} does not exist, and the broker did not create it (auto.create.topics.enable): "
            f"`nilometer topic create {topic}`",
        )
    count = len((await client.topic(topic, timeout_ms)).partitions)
    click.echo(f"Created topic {topic} with {count} partition{'' if count == 1 else 's'}.", err=True)


# The command.


@commands.command()
@click.argument("topic")
@click.argument(
    "files", nargs=-1, metavar="[FILE]…", type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "--key-separator", metavar="TEXT", help="The text before TEXT in a line is the key (\\t is a tab)."
)
@click.option("--key", metavar="TEXT", help="The key of every record.")
@click.option(
    "--null-marker",
    metavar="TEXT",
    help="A key or value that equals TEXT is null; a null value is a tombstone.",
)
@click.option(
    "--json-lines",
    is_flag=True,
    help="Each line is a JSON object with key, value, headers, partition, timestamp, as consume --json "
    "prints it.",
)
@click.option("--whole-file", is_flag=True, help="Each file is the value of one record.")
@click.option("--tombstone", is_flag=True, help="Write one record: --key with a null value.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="KEY=VALUE",
    help="A header for every record; repeatable.",
)
@click.option(
    "--partition",
    type=PARTITION,
    help="Write every record to this partition. Keys do not choose the partition.",
)
@click.option("--no-create", is_flag=True, help="Fail if the topic does not exist.")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@click.option("--compression", type=click.Choice(COMPRESSION_TYPES), default="none", show_default=True)
@property_option
@json_option
@connection_options
def produce(
    topic: str,
    files: tuple[str, ...],
    key_separator: str | None,
    key: str | None,
    null_marker: str | None,
    json_lines: bool,
    whole_file: bool,
    tombstone: bool,
    headers: tuple[str, ...],
    partition: int | None,
    no_create: bool,
    acks: str,
    compression: str,
    properties: tuple[str, ...],
    as_json: bool,
    bootstrap: str,
) -> None:
    """Write the lines of FILEs, or of standard input (-), to TOPIC, each as a record.

    A topic that does not exist is created with the brokers' defaults, and a message says so. A line that is
    no record ends the input: the records before it are written, and the exit code is 1.
    """
    _check(key_separator, key, null_marker, json_lines, whole_file, tombstone, files)
    lines = PlainLines(_separator(key_separator), _bytes_of_option(null_marker), _bytes_of_option(key))
    items, parse = _input(files or (STANDARD_INPUT,), lines, json_lines, whole_file, tombstone)
    pairs = parse_list(headers, "--header")  # as in Kafka, a record may have several headers of one name
    target = Target(
        topic, partition, tuple((name, os.fsencode(value)) for name, value in pairs), not no_create
    )
    config = {
        **client_config(bootstrap),
        "acks": acks,
        "compression.type": compression,
        **parse_pairs(properties, "--property"),
    }
    _report(topic, run_async(produce_items(items, parse, target, config)), as_json)


def _check(
    key_separator: str | None,
    key: str | None,
    null_marker: str | None,
    json_lines: bool,
    whole_file: bool,
    tombstone: bool,
    files: tuple[str, ...],
) -> None:
    """Raise UsageError for options that contradict each other."""
    if sum((json_lines, whole_file, tombstone)) > 1:
        raise click.UsageError("give one of --json-lines, --whole-file and --tombstone")
    if key_separator == "":
        raise click.UsageError("--key-separator must not be empty")
    if key_separator is not None and (key is not None or json_lines or whole_file or tombstone):
        raise click.UsageError("--key-separator is for lines, and --key is another way to give keys")
    if json_lines and (key is not None or null_marker is not None):
        raise click.UsageError("with --json-lines, keys and nulls are in the lines")
    if null_marker is not None and (whole_file or tombstone):
        raise click.UsageError("--null-marker is for lines: leave out --whole-file and --tombstone")
    if tombstone and (key is None or files):
        raise click.UsageError("--tombstone needs --key, and no FILE")


def _separator(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text.replace("\\t", "\t"))


def _bytes_of_option(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def _input(
    paths: tuple[str, ...], lines: PlainLines, json_lines: bool, whole_file: bool, tombstone: bool
) -> tuple[Items, Parse]:
    if tombstone:
        return no_data(), lambda _: InputRecord(lines.key, None)
    if whole_file:
        return whole_files(paths), lambda data: InputRecord(lines.key, data)
    return lines_of(paths), json_record if json_lines else lines.record


def _report(topic: str, outcome: Outcome, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": topic,
                "created": outcome.created,
                "records": outcome.written,
                "failed": outcome.failed,
                "partitions": {str(number): count for number, count in sorted(outcome.partitions.items())},
            }
        )
    elif sys.stderr.isatty():
        click.echo(f"{outcome.written:,} records written to {topic}.", err=True)
    if outcome.first_error is not None:
        raise click.ClickException(f"{outcome.failed:,} records were not written: {outcome.first_error}")
    if outcome.stopped_by is not None:
        before = f"{outcome.written:,} record{'' if outcome.written == 1 else 's'}"
        raise click.ClickException(f"{outcome.stopped_by} ({before} before it written)")
