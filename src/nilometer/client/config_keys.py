"""The keys that clients know, with Kafka's names, defaults and limits.

Three closed sets: producer, consumer, admin. Each begins with the keys that every client has.
"""

from __future__ import annotations

from nilometer.client.consumer.offset_reset import parse_offset_reset
from nilometer.client.group.builtin_assignors import ASSIGNOR_NAMES
from nilometer.config import ConfigDefinition, ConfigKey, ConfigKind, ConfigProblem
from nilometer.config.definition import ConfigValue

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONER_CLASSES = ("default", "round_robin", "uniform_sticky")

ACKS_ALL = -1


def parse_server(text: str) -> tuple[str, int]:
    """``host:port`` (an IPv6 host in brackets). Raises ConfigProblem."""
    host, separator, port = text.rpartition(":")
    host = host.strip().removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigProblem(
            "bootstrap.servers",
            f"Invalid value {text} for configuration bootstrap.servers: must be host:port",
        )
    return host, int(port)


def _servers(value: ConfigValue) -> str | None:
    assert isinstance(value, tuple)
    if not value:
        return "must name at least one host:port"
    for text in value:
        try:
            parse_server(text)
        except ConfigProblem:
            return f"{text} is not of the form host:port"
    return None


def _int(name: str, default: int, doc: str, minimum: int = 0, maximum: int = INT_MAX) -> ConfigKey:
    return ConfigKey(
        name=name, kind=ConfigKind.INT, default=default, doc=doc, minimum=minimum, maximum=maximum
    )


def _long(name: str, default: int, doc: str, minimum: int = 0) -> ConfigKey:
    return ConfigKey(name=name, kind=ConfigKind.LONG, default=default, doc=doc, minimum=minimum)


def _boolean(name: str, default: bool, doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=ConfigKind.BOOLEAN, default=default, doc=doc)


def _choice(name: str, default: str, choices: tuple[str, ...], doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=ConfigKind.STRING, default=default, doc=doc, choices=choices)


def _offset_reset(value: ConfigValue) -> str | None:
    try:
        parse_offset_reset(str(value))
    except ValueError as problem:
        return str(problem)
    return None


def _assignors(value: ConfigValue) -> str | None:
    assert isinstance(value, tuple)
    unknown = [name for name in value if name not in ASSIGNOR_NAMES]
    if unknown or not value:
        return f"must name some of {', '.join(ASSIGNOR_NAMES)}"
    return "names one of them twice" if len(set(value)) < len(value) else None


COMMON_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        name="bootstrap.servers",
        kind=ConfigKind.LIST,
        default=None,
        doc="The brokers to ask first for the rest of the cluster, as host:port.",
        validate=_servers,
    ),
    ConfigKey(
        name="client.id",
        kind=ConfigKind.STRING,
        default="nilometer",
        doc="The name that this client gives itself in requests; it appears in the brokers' logs.",
    ),
    _int("request.timeout.ms", 30_000, "How long to wait for the response to one request.", 1),
    _long("retry.backoff.ms", 100, "The pause before the first retry; it doubles with each further failure."),
    _long("retry.backoff.max.ms", 1_000, "The longest pause between retries."),
    _long(
        "reconnect.backoff.ms",
        50,
        "The pause before connecting again to a broker; it doubles with each failure.",
    ),
    _long("reconnect.backoff.max.ms", 1_000, "The longest pause between attempts to connect to a broker."),
    _long("socket.connection.setup.timeout.ms", 10_000, "How long to wait for a connection to be set up.", 1),
    _long("metadata.max.age.ms", 300_000, "After how long metadata is fetched anew though nothing changed."),
)

_API_TIMEOUT = _int(
    "default.api.timeout.ms", 60_000, "How long an operation may take, all its retries included."
)

ADMIN_KEYS: tuple[ConfigKey, ...] = (*COMMON_KEYS, _API_TIMEOUT)

PRODUCER_KEYS: tuple[ConfigKey, ...] = (
    *COMMON_KEYS,
    _choice(
        "acks",
        "all",
        ("all", "-1", "0", "1"),
        "Who must have a record before it counts as written: all in-sync replicas, 1: the leader, 0: nobody.",
    ),
    _int("batch.size", 16_384, "A batch of one partition is sent at this size, in bytes before compression."),
    _long("linger.ms", 5, "How long a batch that is not full waits for more records."),
    _long("buffer.memory", 33_554_432, "Bytes of records held at most; sending waits for room."),
    _long("max.block.ms", 60_000, "How long sending may wait for metadata or for room in the buffer."),
    _int("max.request.size", 1_048_576, "The largest request, and so the largest record, in bytes."),
    _int("delivery.timeout.ms", 120_000, "After how long a record that is not acknowledged has failed."),
    _int("retries", INT_MAX, "How often a batch is sent again after a failure that may pass."),
    _int("max.in.flight.requests.per.connection", 5, "Requests on their way to one broker at a time.", 1),
    _boolean(
        "enable.idempotence", True, "Number the records so that retries can neither repeat nor reorder them."
    ),
    _choice("compression.type", "none", COMPRESSION_TYPES, "The codec that batches are compressed with."),
    _int("compression.gzip.level", -1, "The level for gzip; -1 is the codec's own default.", -1, 9),
    _int("compression.lz4.level", 9, "The level for lz4.", 1, 17),
    _int("compression.zstd.level", 3, "The level for zstd.", -131_072, 22),
    _choice(
        "partitioner.class",
        "default",
        PARTITIONER_CLASSES,
        "default: hash of the key, else sticky; uniform_sticky: sticky, keys ignored; round_robin: in turn.",
    ),
    _boolean("partitioner.ignore.keys", False, "Spread records evenly even where they have keys."),
    _boolean(
        "partitioner.adaptive.partitioning.enable",
        True,
        "Give partitions with shorter queues more of the records.",
    ),
    _boolean(
        "allow.auto.create.topics", True, "Let the broker create a topic that is written to and not there."
    ),
)

GROUP_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        name="group.id", kind=ConfigKind.STRING, default=None, doc="The consumer group to be a member of."
    ),
    ConfigKey(
        name="group.instance.id",
        kind=ConfigKind.STRING,
        default=None,
        doc="Makes the consumer a static member: it keeps its partitions over restarts that are quicker than "
        "session.timeout.ms (KIP-345).",
    ),
    _choice(
        "group.protocol",
        "classic",
        ("classic", "consumer"),
        "classic: members deal the partitions out; consumer: the coordinator does (KIP-848).",
    ),
    ConfigKey(
        name="group.remote.assignor",
        kind=ConfigKind.STRING,
        default=None,
        doc="The coordinator's assignor, for group.protocol=consumer; by default its own choice.",
    ),
    _int(
        "session.timeout.ms",
        45_000,
        "A member that is not heard of for so long is taken for dead by the coordinator.",
        1,
    ),
    _int("heartbeat.interval.ms", 3_000, "How often a member gives a sign of life.", 1),
    _int(
        "max.poll.interval.ms",
        300_000,
        "A consumer that does not poll for so long leaves its group, for others to have its partitions.",
        1,
    ),
    ConfigKey(
        name="partition.assignment.strategy",
        kind=ConfigKind.LIST,
        default=("range", "cooperative-sticky"),
        doc="How the members of a classic group deal the partitions out: the first that all of them name.",
        validate=_assignors,
    ),
    _boolean("enable.auto.commit", True, "Commit what polls returned, now and then and before a rebalance."),
    _int("auto.commit.interval.ms", 5_000, "How often that is."),
    _boolean("exclude.internal.topics", True, "Leave internal topics out of subscriptions by pattern."),
)

CONSUMER_KEYS: tuple[ConfigKey, ...] = (
    *COMMON_KEYS,
    _API_TIMEOUT,
    _int("fetch.min.bytes", 1, "The broker answers once it has this many bytes, or after fetch.max.wait.ms."),
    _int(
        "fetch.max.bytes", 52_428_800, "The largest answer to one fetch, in bytes (one batch may exceed it)."
    ),
    _int("fetch.max.wait.ms", 500, "How long the broker may wait for fetch.min.bytes."),
    _int("max.partition.fetch.bytes", 1_048_576, "The most bytes of one partition in an answer."),
    _int("max.poll.records", 500, "The most records that one poll returns.", 1),
    ConfigKey(
        name="auto.offset.reset",
        kind=ConfigKind.STRING,
        default="latest",
        doc="Where to read from when there is no position, or it is not in the log any more: earliest, "
        "latest, none (that is an error), or by_duration:PT1H (the records of the last hour).",
        validate=_offset_reset,
    ),
    _choice(
        "isolation.level",
        "read_uncommitted",
        ("read_uncommitted", "read_committed"),
        "Whether records of open and aborted transactions are returned.",
    ),
    _boolean("check.crcs", True, "Verify the checksum of every batch that is read."),
    ConfigKey(
        name="client.rack",
        kind=ConfigKind.STRING,
        default="",
        doc="Where this client is, for reading nearby (KIP-392).",
    ),
    _boolean("allow.auto.create.topics", True, "Let the broker create a topic that is read and not there."),
    *GROUP_KEYS,
)

PRODUCER_CONFIG_DEFINITION = ConfigDefinition.of("producer", PRODUCER_KEYS)
CONSUMER_CONFIG_DEFINITION = ConfigDefinition.of("consumer", CONSUMER_KEYS)
ADMIN_CONFIG_DEFINITION = ConfigDefinition.of("admin", ADMIN_KEYS)
