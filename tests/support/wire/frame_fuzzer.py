"""Generates malformed requests, by random mutations of valid ones.

Pure: ``mutated_frame(seed, index, ...)`` always returns the same frame for the same arguments, so two numbers
reproduce a failure. Every API and version with a schema is used in turn, starting from a valid request. Its
fields use a vocabulary of existing topics and groups, so that mutated requests are not all rejected by the
decoder. A frame starts with its length, right or wrong.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from msgspec import structs

from nilometer.wire.compression import Codec
from nilometer.wire.encoder import writer
from nilometer.wire.messages import ApiKey, api, request_header, supported_versions
from nilometer.wire.record_batch import HEADER_BYTES, pack_batch, read_header
from nilometer.wire.records import BatchBuilder

from .random_messages import Vocabulary, random_message

EVERY_VERSION = tuple(
    (key, version)
    for key in ApiKey
    for low, high in [supported_versions(key)]
    for version in range(low, high + 1)
)

DEFAULT_VOCABULARY = Vocabulary(
    strings=("topic", "group", "PLAIN", "range", "consumer"), numbers=(0, 1, 2, -1, 1000), duration_ms_max=5
)

HUGE_NUMBERS = tuple(
    number.to_bytes(4, "big", signed=True) for number in (2**31 - 1, -1, -2, -(2**31), 2**24, 65536, 1000)
)
HUGE_SHORTS = (b"\x7f\xff", b"\xff\xff", b"\xff\xfe", b"\x80\x00")
HUGE_VARINTS = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\x7f",
    b"\xff\xff\x03",
    b"\x80\x80\x80\x80\x00",
    b"\x80\x80\x80\x80\x80\x80\x01",
    b"\xff" * 10,
    b"\x00",
)
_COUNT_BYTES_MAX = 5
_CLIENT_ID = "fuzzer"


class Kind(enum.Enum):
    VALID = "valid"
    BIT_FLIPS = "bit flips"
    TRUNCATED = "truncated"
    EXTENDED = "extended"
    WRONG_LENGTH = "wrong length"
    OVERWRITTEN = "a huge number written over some bytes"
    HOSTILE_COUNT = "a huge number in place of a size, a count or a field"
    LEFT_OUT = "a field left out"
    DOUBLED = "a field doubled"
    SPLICED = "the rest of another request"
    OTHER_VERSION = "the body of another version"
    UNKNOWN_API = "an API or version that does not exist"
    RECORDS = "record batches with damage under a right CRC"
    NOISE = "noise"


@dataclass(frozen=True, slots=True)
class MutatedFrame:
    seed: int
    index: int
    api_key: ApiKey
    api_version: int
    kind: Kind
    frame: bytes

    def describe(self) -> str:
        what = f"{self.api_key.name} {self.api_version}, {self.kind.value}"
        return f"mutated_frame({self.seed}, {self.index}): {what}"


def mutated_frame(seed: int, index: int, vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> MutatedFrame:
    chance = random.Random(f"{seed}.{index}")
    key, version = EVERY_VERSION[index % len(EVERY_VERSION)]
    kind = chance.choice(_KINDS)
    pieces = _request(key, version, index, chance, vocabulary, damaged_records=kind is Kind.RECORDS)
    body = bytearray(_MUTATIONS[kind](pieces, chance, vocabulary))
    length = _wrong_length(len(body), chance) if kind is Kind.WRONG_LENGTH else len(body)
    return MutatedFrame(seed, index, key, version, kind, length.to_bytes(4, "big", signed=True) + body)


def mutated_frames(
    seed: int, count: int, vocabulary: Vocabulary = DEFAULT_VOCABULARY, start: int = 0
) -> Iterator[MutatedFrame]:
    for index in range(start, start + count):
        yield mutated_frame(seed, index, vocabulary)


def _request(
    key: ApiKey,
    version: int,
    correlation_id: int,
    chance: random.Random,
    vocabulary: Vocabulary,
    *,
    damaged_records: bool = False,
) -> list[bytes]:
    """Return a valid request in pieces: one for the header, then about one per field."""
    codec = api(key, version)
    if key is ApiKey.PRODUCE:
        vocabulary = _with_records(vocabulary, chance, damaged=damaged_records)
    pieces = [request_header(codec, correlation_id & 0x7FFFFFFF, _CLIENT_ID)]
    writer(codec.request_type)(pieces, random_message(codec.request_type, chance, vocabulary=vocabulary))
    return pieces


def _with_records(vocabulary: Vocabulary, chance: random.Random, *, damaged: bool) -> Vocabulary:
    batches = [random_batch(chance) for _ in range(2)]
    records = (
        tuple(damaged_batch(batch, chance) for batch in batches) if damaged else (*batches, b"".join(batches))
    )
    return replace(vocabulary, records=records)


def random_batch(chance: random.Random) -> bytes:
    builder = BatchBuilder(chance.choice(list(Codec)))
    for number in range(chance.choice((1, 2, 30))):
        builder.append(1_700_000_000_000 + number, chance.choice((None, b"key")), b"value %d" % number)
    producer = chance.choice(((-1, -1, -1), (5, 0, 0), (5, 0, 2**31 - 1), (2**62, 32767, 3)))
    return builder.build(0, *producer, transactional=chance.random() < 0.2)


def damaged_batch(batch: bytes, chance: random.Random) -> bytes:
    """Damage a batch's records or header and give it a correct CRC, so that only its contents are wrong."""
    header = read_header(batch)
    records = bytearray(batch[HEADER_BYTES:])
    match chance.randrange(3):
        case 0:
            for _ in range(chance.choice((1, 3))):
                records[chance.randrange(len(records))] = chance.randrange(256)
        case 1:
            del records[chance.randrange(len(records)) :]
        case _:
            header = structs.replace(
                header,
                attributes=chance.getrandbits(7),
                last_offset_delta=chance.choice((0, -1, 2**31 - 1, header.last_offset_delta)),
                records_count=chance.choice((0, -1, 2**31 - 1, header.records_count)),
                base_timestamp=chance.choice((-1, 2**63 - 1, -(2**63))),
            )
    return pack_batch(header, records)


def _wrong_length(length: int, chance: random.Random) -> int:
    return chance.choice(
        (0, 1, 7, length - 1, length + 1, length + 1000, length * 2, -1, -(2**31), 2**31 - 1, 104_857_601)
    )


def _joined(pieces: list[bytes], chance: random.Random, vocabulary: Vocabulary) -> bytes:
    return b"".join(pieces)


def _flip_bits(pieces: list[bytes], chance: random.Random, vocabulary: Vocabulary) -> bytes:
    body = bytearray(b"".join(pieces))
    for _ in range(chance.choice((1, 1, 2, 8))):
        body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    return bytes(body)


def _truncate(pieces: list[bytes], chance: random.Random, vocabulary: Vocabulary) -> bytes:
    body = b"".join(pieces)
    return body[: chance.randrange(len(body))]


def _extend(pieces: list[bytes], chance: random.Random, vocabulary: Vocabulary) -> bytes:
    return b"".join(pieces) + chance.randbytes(chance.choice((1, 4, 100)))


def _overwrite(pieces: list[bytes], chance: random.Random, vocabulary: Vocabulary) -> bytes:
    body = bytearray(b"".join(pieces))
    number = chance.choice(HUGE_NUMBERS + HUGE_SHORTS + HUGE_VARINTS)
    position = chance.randrange(len(body))
    body[position : position + len(number)] = number
    return bytes(body)


def _hostile_count(pieces: list[bytes], chance: random.Random, vocabulary: Vocabulary) -> bytes:
    """Replace whole pieces that are as short as a count by large numbers; the other pieces stay unchanged."""
    short = [at for at in range(1, len(pieces)) if 0 < len(pieces[at]) <= _COUNT_BYTES_MAX] or [
        len(pieces) - 1
    ]
    changed = list(pieces)
    for at in chance.sample(short, min(len(short), chance.choice((1, 1, 2)))):
        same_size = {2: HUGE_SHORTS, 4: HUGE_NUMBERS}.get(len(pieces[at]), HUGE_VARINTS)
        changed[at] = chance.choice(same_size if chance.random() < 0.8 else HUGE_VARINTS)
    return b"".join(changed)


def _leave_out(pieces: list[bytes], chance: random.Random, vocabulary: Vocabulary) -> bytes:
    at = chance.randrange(len(pieces))
    return b"".join(pieces[:at] + pieces[at + 1 :])


def _double(pieces: list[bytes], chance: random.Random, vocabulary: Vocabulary) -> bytes:
    at = chance.randrange(len(pieces))
    return b"".join(pieces[:at] + pieces[at : at + 1] * chance.choice((2, 50)) + pieces[at + 1 :])


def _splice(pieces: list[bytes], chance: random.Random, vocabulary: Vocabulary) -> bytes:
    other = b"".join(_request(*chance.choice(EVERY_VERSION), 1, chance, vocabulary))
    body = b"".join(pieces)
    return body[: chance.randrange(len(body))] + other[chance.randrange(len(other)) :]


def _other_version(pieces: list[bytes], chance: random.Random, vocabulary: Vocabulary) -> bytes:
    low, high = supported_versions(int.from_bytes(pieces[0][:2], "big"))
    return _with_version(b"".join(pieces), chance.randint(low, high))


def _unknown_api(pieces: list[bytes], chance: random.Random, vocabulary: Vocabulary) -> bytes:
    body = b"".join(pieces)
    if chance.random() < 0.5:
        return _with_version(body, chance.choice((-1, 127, 32767, -32768)))
    return chance.choice((-1, 4, 7, 93, 999, 32767, -32768)).to_bytes(2, "big", signed=True) + body[2:]


def _with_version(body: bytes, version: int) -> bytes:
    return body[:2] + version.to_bytes(2, "big", signed=True) + body[4:]


def _noise(pieces: list[bytes], chance: random.Random, vocabulary: Vocabulary) -> bytes:
    size = chance.choice((0, 1, 8, 100, 2000))
    return chance.choice(
        (bytes(size), b"\xff" * size, chance.randbytes(size), pieces[0] + chance.randbytes(size))
    )


_MUTATIONS: dict[Kind, Callable[[list[bytes], random.Random, Vocabulary], bytes]] = {
    Kind.VALID: _joined,
    Kind.BIT_FLIPS: _flip_bits,
    Kind.TRUNCATED: _truncate,
    Kind.EXTENDED: _extend,
    Kind.WRONG_LENGTH: _joined,
    Kind.OVERWRITTEN: _overwrite,
    Kind.HOSTILE_COUNT: _hostile_count,
    Kind.LEFT_OUT: _leave_out,
    Kind.DOUBLED: _double,
    Kind.SPLICED: _splice,
    Kind.OTHER_VERSION: _other_version,
    Kind.UNKNOWN_API: _unknown_api,
    Kind.RECORDS: _joined,
    Kind.NOISE: _noise,
}
_KINDS = tuple(Kind)
