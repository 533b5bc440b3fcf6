"""Topics whose older records are in remote storage only, as Apache Kafka has them: what is told of their
offsets, what is read from where, and which settings they may have.

Kafka's remote storage is a folder, too (``nilometer.FolderStorage`` of the Java parts).
"""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.comparison import same, versions
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.record_requests import fetch, list_offsets
from support.brokers.two_brokers import Plain, Side
from support.eventually import eventually
from support.kafka.apache_kafka import FOLDER_STORAGE, ApacheKafka
from support.wire.new_topics import new_topic
from support.wire.wire_peer import make

pytestmark = [pytest.mark.java, pytest.mark.long]

BOTH = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "0",
    "log.retention.hours": "1000000",
}
TIERED = {
    "remote_storage_enable": "true",
    "segment_bytes": "1048576",
    "local_retention_bytes": "1",
    "retention_ms": "-1",
}
BIG = b"v" * 60_000
BATCHES = 17
"""So many batches with such a record fill a segment."""
EARLIEST_LOCAL, LATEST_TIERED = -4, -5
ATTEMPTS_MAX = 10
WAIT_S = 60.0


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    folder = tmp_path_factory.mktemp("tiers")
    for name in ("of-kafka", "tier"):
        (folder / name).mkdir()
    own = {"nilometer.tier.uri": (folder / "tier").as_uri(), "nilometer.tier.grace.ms": "0"}
    apache = ApacheKafka(
        folder / "kafka", overrides={**BOTH, **FOLDER_STORAGE, "rsm.config.dir": str(folder / "of-kafka")}
    )
    try:
        with NilometerBroker(folder / "data", {**BOTH, **own}) as broker:
            apache.start()
            both = Side("Apache Kafka", apache.bootstrap), Side("Nilometer", broker.bootstrap)
            yield both
            for side in both:
                side.hang_up()
        assert "Traceback" not in broker.output
    finally:
        apache.kill()


def offset(side: Side, name: str, timestamp: int) -> int:
    told = list_offsets(side, 9, name, 0, timestamp)
    return told["topics"][0]["partitions"][0]["offset"]  # type: ignore[no-any-return]


def listed(side: Side, version: int, name: str, timestamp: int) -> Plain:
    """Ask again if remote storage was not searched in time, as a client does: on a busy machine."""
    for _ in range(ATTEMPTS_MAX):
        told = list_offsets(side, version, name, 0, timestamp)
        if told["topics"][0]["partitions"][0]["error_code"] != ErrorCode.request_timed_out.name:
            return told
    raise AssertionError(f"{side.name} does not search remote storage in time")


def wait_tiered(side: Side, name: str, end: int) -> None:
    """Wait until the records below ``end``, where the active segment begins, are in remote storage only."""
    eventually(
        lambda: offset(side, name, EARLIEST_LOCAL) == end and offset(side, name, LATEST_TIERED) == end - 1,
        f"{side.name} has the records of {name} below {end} in remote storage only",
        WAIT_S,
    )


def read(side: Side, version: int, name: str, wanted: list[tuple[int, int]], **fields: object) -> Plain:
    """Fetch until there is an answer: what is in remote storage may come with a later fetch."""
    told: list[Plain] = []

    def is_told() -> bool:
        told[:] = [fetch(side, version, name, wanted, max_wait_ms=500, **fields)]
        partitions = [one for answer in told[0]["responses"] for one in answer["partitions"]]
        return bool(partitions) and all(one["records"] or one["error_code"] != "none" for one in partitions)

    eventually(is_told, f"{side.name} reads {name} at {wanted}", WAIT_S)
    for answer in told[0]["responses"]:
        for partition in answer["partitions"]:
            del partition["records"][1:]  # how many come beyond the first is free
            partition["records"] = [(at, key, len(value)) for at, key, value in partition["records"]]
    return told[0]


def filled(side: Side, name: str, batches: int) -> str:
    """Create a tiered topic of batches of two records, whose older segments are in remote storage only."""
    side.create(name, **TIERED)
    for number in range(batches):
        side.append(name, b"%05d" % number + BIG, b"x", timestamp=1_000 * (number + 1))
    wait_tiered(side, name, 2 * (batches - batches % BATCHES))
    return name


def test_offsets_of_a_tiered_topic(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = filled(side, "offsets", 60)
        times = (-1, -2, -3, EARLIEST_LOCAL, LATEST_TIERED, -6, -7, 0, 999, 1_000, 1_001, 1_002, 30_500)
        return {
            f"v{version}, at {timestamp}": listed(side, version, name, timestamp)
            for version in versions(ApiKey.LIST_OFFSETS)
            for timestamp in (*times, 34_000, 34_001, 35_000, 60_001, 60_002, 2**62)
        }

    same(sides, scenario)


def test_records_of_a_tiered_topic(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = filled(side, "records", 60)
        start = offset(side, name, EARLIEST_LOCAL)
        told: dict[str, Plain] = {"local start": start}
        for version in versions(ApiKey.FETCH):
            for at in (0, 1, 2, 33, start - 2, start - 1, start, start + 1, 119, 121, -1):
                told[f"v{version}, from {at}"] = read(side, version, name, [(0, at)])
        for isolation in (0, 1):
            told[f"isolation {isolation}"] = read(side, 11, name, [(0, 4)], isolation_level=isolation)
        told["known epoch"] = read(side, 12, name, [(0, 4)], current_leader_epoch=0)
        told["epoch to come"] = read(side, 12, name, [(0, 4)], current_leader_epoch=4)
        told["fetched epoch"] = read(side, 12, name, [(0, 4)], last_fetched_epoch=0)
        told["less than a batch"] = read(side, 12, name, [(0, 4)], partition_max_bytes=10, max_bytes=10)
        return told

    same(sides, scenario)


def test_two_partitions_of_which_one_is_tiered(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create("two", 2, **TIERED)
        for number in range(20):
            side.append(name, b"%05d" % number + BIG, b"x")
        side.append(name, b"of the other", partition=1)
        wait_tiered(side, name, 2 * BATCHES)
        return [read(side, 12, name, [(0, 0)]), read(side, 12, name, [(1, 0)])]

    same(sides, scenario)


def test_aborted_transactions_of_a_tiered_topic(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = side.create("aborted", **TIERED)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": side.bootstrap, "transactional.id": "writer", "log_level": 0}
        )
        producer.init_transactions(30)
        for number in range(50):
            producer.begin_transaction()
            producer.produce(name, BIG, b"%d" % number, 0)
            producer.flush(30)
            if number % 3 == 1:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
        wait_tiered(side, name, 68)
        eventually(lambda: offset(side, name, -1) == 100, "the marker of the last transaction is written")
        told: dict[str, Plain] = {}
        for at in (0, 2, 3, 4, 17, 40, 67, 68, 98):
            told[f"from {at}"] = read(side, 11, name, [(0, at)], isolation_level=1, partition_max_bytes=1)
            for partition in told[f"from {at}"]["responses"][0]["partitions"]:
                # Apache Kafka also names those that begin behind what it returns.
                partition["aborted_transactions"] = [
                    aborted["first_offset"]
                    for aborted in partition["aborted_transactions"]
                    if aborted["first_offset"] <= at
                ]
        return told

    same(sides, scenario)


def test_records_deleted_from_a_tiered_topic(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        name = filled(side, "deleted", 60)
        key = ApiKey.DELETE_RECORDS
        told: dict[str, Plain] = {}
        for end in (39, 20, 500):
            asked = make(key, 2, "DeleteRecordsPartition", partition_index=0, offset=end)
            topic = make(key, 2, "DeleteRecordsTopic", name=name, partitions=(asked,))
            told[f"to {end}"] = side.ask(key, 2, topics=(topic,), timeout_ms=10_000)
        for timestamp in (-1, -2, EARLIEST_LOCAL, LATEST_TIERED, 0, 20_000, 21_000):
            told[f"at {timestamp}"] = list_offsets(side, 9, name, 0, timestamp)
        for at in (0, 38, 39, 40):
            told[f"from {at}"] = read(side, 12, name, [(0, at)])
        return told

    same(sides, scenario)


def test_the_end_of_tiering(sides: tuple[Side, Side]) -> None:
    """At times Apache Kafka then also deletes what was local; here that stays."""

    def scenario(side: Side) -> Plain:
        name = filled(side, "ended", 40)
        told: list[Plain] = [altered(side, name, **{"remote.storage.enable": "false"})]
        both = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
        told.append(altered(side, name, **both))
        local = 2 * (40 - 40 % BATCHES)
        eventually(lambda: offset(side, name, -2) >= local, f"{side.name} has what is local only", WAIT_S)
        told += [list_offsets(side, 9, name, 0, timestamp) for timestamp in (-1, LATEST_TIERED)]
        told += [read(side, 12, name, [(0, at)]) for at in (0, local - 1)]
        return told

    same(sides, scenario)


def altered(side: Side, name: str, **configs: str) -> Plain:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    changes = tuple(
        make(key, 1, "AlterableConfig", name=one, config_operation=0, value=value)
        for one, value in configs.items()
    )
    resource = make(key, 1, "AlterConfigsResource", resource_type=2, resource_name=name, configs=changes)
    return messages(side.message(key, 1, resources=(resource,), validate_only=False).responses)


def messages(outcomes: object) -> Plain:
    return [(one.error_code.name, one.error_message) for one in outcomes]  # type: ignore[attr-defined]


SETTINGS: tuple[dict[str, str], ...] = (
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "compact,delete"},
    {"cleanup.policy": ""},
    {"local.retention.ms": "-1"},
    {"local.retention.ms": "-2"},
    {"retention.ms": "1000", "local.retention.ms": "1001"},
    {"retention.ms": "1000", "local.retention.ms": "-1"},
    {"retention.bytes": "1000", "local.retention.bytes": "1001"},
    {"retention.bytes": "1000", "local.retention.bytes": "-1"},
    {"remote.log.copy.disable": "true"},
    {"remote.log.copy.disable": "true", "local.retention.ms": "5"},
    {"remote.log.copy.disable": "true", "local.retention.ms": "-2", "local.retention.bytes": "-2"},
    {"remote.log.delete.on.disable": "true"},
    {"remote.storage.enable": "false", "local.retention.ms": "5"},
    {"remote.storage.enable": "false", "remote.log.copy.disable": "true"},
    {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"},
)


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_settings_of_tiered_topics(sides: tuple[Side, Side], number: int) -> None:
    """Together with remote storage, at the creation of a topic and later."""
    wanted = {"remote.storage.enable": "true", **SETTINGS[number]}

    def scenario(side: Side) -> Plain:
        key = ApiKey.CREATE_TOPICS
        configs = tuple(
            make(key, 7, "CreatableTopicConfig", name=one, value=value) for one, value in wanted.items()
        )
        created = side.message(
            key, 7, topics=(new_topic(f"set-{number}", 1, configs=configs),), timeout_ms=10_000
        )
        side.create(f"plain-{number}")
        return messages(created.topics), altered(side, f"plain-{number}", **wanted)

    same(sides, scenario)
