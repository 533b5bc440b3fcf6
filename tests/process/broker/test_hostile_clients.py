"""Clients that ask for more than they take, or announce more than they send: what they may cost a broker.

Each bound on memory is a sentence about the broker's resident set, measured on a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nilometer.broker.api.dispatcher import WHOLE_BYTES_MAX
from nilometer.broker.connection_memory import AHEAD_BYTES_MAX, HELD_BYTES_MAX
from nilometer.broker.groups.group_administration import REBALANCES_MAX
from nilometer.broker.groups.group_coordinator import GROUP_ID_MAX, METADATA_BYTES_MAX
from nilometer.broker.process import LINES_PER_SECOND
from nilometer.cluster.cluster_secret import NONCE_BYTES
from nilometer.groups.requests import RECORD_BYTES_MAX
from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message, api, encode_request
from nilometer.wire.own_apis import ProveBrokerRequest
from nilometer.wire.record_batch import pack_batch, read_header, with_codec
from nilometer.wire.records import BatchBuilder
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.secured_broker import PREFIX, SecuredBroker
from support.brokers.served_apis import APIS
from support.brokers.two_brokers import produce_fields
from support.eventually import eventually
from support.ports import HOST
from support.wire.new_topics import new_topic
from support.wire.wire_peer import ConnectionEnded, WirePeer, make

BURST_CONNECTIONS = 1_500
CROWD_PIPELINED = 100
MIB = 1024 * 1024
TOPIC = "much"
RECORD_BYTES = 512 * 1024
RECORDS = 64
ANNOUNCED = 90 * MIB
IDLE_CONNECTIONS = 2_000
CHUNK_BYTES = 256 * 1024
CLIENT_IDS = 800
CLIENT_ID_CHARACTERS = 32_000
"""With one above U+FFFF, so that each takes four bytes."""
CLIENT_IDS_BYTES_MAX = 32 * MIB
"""A third of what the client ids take."""
UNREAD_BYTES = 256 * MIB
"""Of requests: far more than the kernel keeps for both sides of a connection."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    """With 32 MiB in one partition."""
    folder = tmp_path_factory.mktemp("hostile")
    with NilometerBroker(folder / "data", {"message.max.bytes": str(2 * MIB)}) as broker:
        with WirePeer(broker.bootstrap) as peer:
            create(peer, TOPIC)
            for number in range(RECORDS):
                assert produce(peer, TOPIC, b"%08d" % number + b"." * RECORD_BYTES) == ErrorCode.none
        yield broker
        assert "Traceback" not in broker.output
        assert " ERROR " not in broker.output


def create(peer: WirePeer, name: str) -> None:
    answer = peer.ask(ApiKey.CREATE_TOPICS, 7, topics=(new_topic(name),), timeout_ms=10_000)
    assert answer.topics[0].error_code == ErrorCode.none


def one_batch(value: bytes) -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, value)
    return builder.build()


def produce_request(topic: str, value: bytes, acks: int = -1) -> Message:
    partition = make(ApiKey.PRODUCE, 9, "PartitionProduceData", index=0, records=one_batch(value))
    data = make(ApiKey.PRODUCE, 9, "TopicProduceData", name=topic, partition_data=(partition,))
    return api(ApiKey.PRODUCE, 9).request(acks=acks, timeout_ms=10_000, topic_data=(data,))


def produce(peer: WirePeer, topic: str, value: bytes) -> ErrorCode:
    peer.socket.sendall(encode_request(1, "test", produce_request(topic, value)))
    return peer.hear(ApiKey.PRODUCE, 9).responses[0].partition_responses[0].error_code


def fetch_request(
    topic: str, offset: int = 0, min_bytes: int = 1, partitions: Iterable[int] = (0,)
) -> Message:
    """``min_bytes``: if there are fewer, the fetch waits."""
    asked = tuple(
        make(
            ApiKey.FETCH,
            11,
            "FetchPartition",
            partition=index,
            fetch_offset=offset,
            partition_max_bytes=50 * MIB,
        )
        for index in partitions
    )
    part = make(ApiKey.FETCH, 11, "FetchTopic", topic=topic, partitions=asked)
    wait_ms = 0 if min_bytes == 1 else 2**31 - 1
    return api(ApiKey.FETCH, 11).request(
        max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=50 * MIB, session_epoch=-1, topics=(part,)
    )


def configs_request() -> Message:
    """A short question with a long answer."""
    key = ApiKey.DESCRIBE_CONFIGS
    asked = make(
        key, 4, "DescribeConfigsResource", resource_type=4, resource_name="1", configuration_keys=None
    )
    return api(key, 4).request(resources=(asked,), include_documentation=True)


def rss_bytes(broker: NilometerBroker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def peak_bytes(broker: NilometerBroker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def descriptors(broker: NilometerBroker) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


def connect(broker: NilometerBroker) -> socket.socket:
    return socket.create_connection((HOST, broker.port), timeout=20)


def answers(broker: NilometerBroker) -> bool:
    with WirePeer(broker.bootstrap) as peer:
        return peer.ask(ApiKey.API_VERSIONS, 3, **SOFTWARE).error_code == ErrorCode.none


SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


@pytest.mark.parametrize("size", [104_857_601, 2**31 - 1, -1, -(2**31)])
def test_a_frame_above_the_limit_is_refused_unread(broker: NilometerBroker, size: int) -> None:
    with WirePeer(broker.bootstrap) as peer:
        peer.socket.sendall(struct.pack(">i", size))
        assert peer.is_ended()
    eventually(lambda: "socket.request.max.bytes is 104857600" in broker.output, "the reason is logged")


@pytest.mark.parametrize(
    "key", [key for key in NilometerApiKey if key in APIS], ids=lambda key: key.name.lower()
)
def test_a_large_request_of_an_own_api_is_refused_undecoded(
    broker: NilometerBroker, key: NilometerApiKey
) -> None:
    """They are decoded at once, and before anyone looks who sends them: three million names took 0.2 s."""
    frame = struct.pack(">hhih", key, 0, 1, -1) + bytes(WHOLE_BYTES_MAX)
    with WirePeer(broker.bootstrap) as peer:
        peer.tell_bytes(frame)
        assert peer.is_ended()
    eventually(lambda: f"{key.name} of {len(frame)} bytes" in broker.output, "the reason is logged")


def test_a_request_names_a_bounded_number_of_groups(broker: NilometerBroker) -> None:
    groups = tuple(f"g{number}" for number in range(REBALANCES_MAX))
    key = NilometerApiKey.DESCRIBE_REBALANCES
    with WirePeer(broker.bootstrap) as peer:
        described = peer.ask(key, 0, groups=groups).groups
        assert [one.group_id for one in described] == list(groups)
        peer.tell(key, 0, groups=(*groups, "another"))
        assert peer.is_ended()


def test_what_came_before_a_frame_above_the_limit_is_answered(broker: NilometerBroker) -> None:
    question = encode_request(7, "test", api(ApiKey.API_VERSIONS, 0).request())
    with WirePeer(broker.bootstrap) as peer:
        peer.socket.sendall(question + struct.pack(">i", 2**31 - 1))
        assert peer.hear(ApiKey.API_VERSIONS, 0).error_code == ErrorCode.none
        assert peer.is_ended()


@pytest.mark.parametrize("announced", [MIB, ANNOUNCED], ids=["a-megabyte", "nearly-the-limit"])
def test_announcing_takes_no_memory(broker: NilometerBroker, announced: int) -> None:
    """500 clients announce a frame each and send its first bytes: some memory ahead, and 32 KiB for each."""
    before = rss_bytes(broker)
    with ExitStack() as stack:
        for _ in range(500):
            client = stack.enter_context(connect(broker))
            client.sendall(struct.pack(">ihhi", announced, ApiKey.PRODUCE, 9, 1))
        eventually(lambda: descriptors(broker) >= 500, "all are accepted")
        assert answers(broker), "the broker has read what came before"
        assert rss_bytes(broker) - before < AHEAD_BYTES_MAX + 500 * 32 * 1024


def test_requests_that_never_end_take_a_bounded_part_of_the_memory(tmp_path: Path) -> None:
    """Twelve clients send 40 MB each of a request of 100 MB. They hold ``queued.max.request.bytes`` at most;
    small requests are served meanwhile, and a large one when those without progress are disconnected."""
    settings = {"queued.max.request.bytes": str(ANNOUNCED + 1000), "socket.request.max.bytes": str(ANNOUNCED)}
    with NilometerBroker(tmp_path / "data", settings) as broker, ExitStack() as stack:
        before = rss_bytes(broker)
        part = struct.pack(">ihhi", ANNOUNCED, ApiKey.PRODUCE, 9, 1) + bytes(40_000_000)
        for _ in range(12):
            client = stack.enter_context(connect(broker))
            client.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                client.sendall(part)
            assert answers(broker)
            assert rss_bytes(broker) - before < 2 * ANNOUNCED, "a buffer that has grown is copied"
        with WirePeer(broker.bootstrap) as peer:
            fields = produce_fields(9, "nowhere", {0: bytes(5_000_000)})
            (answered,) = peer.ask(ApiKey.PRODUCE, 9, **fields).responses
            assert answered.partition_responses[0].error_code == ErrorCode.unknown_topic_or_partition
        assert "queued.max.request.bytes) is used up" in broker.output


def test_the_metadata_of_all_members_has_a_bound(tmp_path: Path) -> None:
    """Groups of one member with 10 MB of metadata each: there is room for six of them, and for another one
    when a member has left."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with NilometerBroker(tmp_path / "data", settings) as broker, WirePeer(broker.bootstrap) as peer:
        peer.ask(ApiKey.FIND_COORDINATOR, 2, key="first", key_type=0)  # creates the topic of the groups
        ready = lambda: join(peer, "first", b"").error_code == ErrorCode.none  # noqa: E731
        eventually(ready, "the coordinator has loaded its groups")
        before = rss_bytes(broker)
        joined = [join(peer, f"g{number}", bytes(10_000_000)) for number in range(40)]
        errors = [one.error_code for one in joined]
        assert errors == [ErrorCode.none] * 6 + [ErrorCode.group_max_size_reached] * 34
        assert rss_bytes(broker) - before < METADATA_BYTES_MAX + 64 * MIB
        left = peer.ask(ApiKey.LEAVE_GROUP, 2, group_id="g0", member_id=joined[0].member_id)
        assert left.error_code == ErrorCode.none
        has_room = lambda: join(peer, "another", bytes(10_000_000)).error_code == ErrorCode.none  # noqa: E731
        eventually(has_room, "what the member held is not counted any more")


def test_members_with_thousands_of_protocols_have_a_bound(tmp_path: Path) -> None:
    """A protocol of a few bytes takes 138 in memory."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    protocols = tuple(f"{number:x}" for number in range(9_900))
    with NilometerBroker(tmp_path / "data", settings) as broker, WirePeer(broker.bootstrap) as peer:
        peer.ask(ApiKey.FIND_COORDINATOR, 2, key="first", key_type=0)  # creates the topic of the groups
        ready = lambda: join(peer, "first", b"").error_code == ErrorCode.none  # noqa: E731
        eventually(ready, "the coordinator has loaded its groups")
        before = rss_bytes(broker)
        joined = [join(peer, f"g{number}", b"", 3, protocols).error_code for number in range(120)]
        assert joined[:40] == [ErrorCode.none] * 40
        assert joined[60:] == [ErrorCode.group_max_size_reached] * 60
        assert rss_bytes(broker) - before < METADATA_BYTES_MAX + 64 * MIB


def test_assignments_have_a_bound(tmp_path: Path) -> None:
    """The leader of a group sends what it likes to each member, which stays in memory and in the log."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with NilometerBroker(tmp_path / "data", settings) as broker, WirePeer(broker.bootstrap) as peer:
        peer.ask(ApiKey.FIND_COORDINATOR, 2, key="first", key_type=0)  # creates the topic of the groups
        ready = lambda: join(peer, "first", b"").error_code == ErrorCode.none  # noqa: E731
        eventually(ready, "the coordinator has loaded its groups")
        before = rss_bytes(broker)
        assert sync(peer, "large", RECORD_BYTES_MAX + 1) == ErrorCode.unknown_server_error
        errors = [sync(peer, f"g{number}", RECORD_BYTES_MAX - 1) for number in range(30)]
        assert errors[:15] == [ErrorCode.none] * 15
        assert errors[16:] == [ErrorCode.unknown_server_error] * 14
        assert rss_bytes(broker) - before < METADATA_BYTES_MAX + 64 * MIB


def sync(peer: WirePeer, group: str, size: int) -> ErrorCode:
    joined = join(peer, group, b"m")
    assignment = make(
        ApiKey.SYNC_GROUP, 2, "SyncGroupRequestAssignment", member_id=joined.member_id, assignment=bytes(size)
    )
    return peer.ask(
        ApiKey.SYNC_GROUP,
        2,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=(assignment,),
    ).error_code


def test_ids_for_members_that_never_join_have_a_bound(tmp_path: Path) -> None:
    """Each JoinGroup without an id gets one that has its client id, and is kept for half an hour."""
    with (
        NilometerBroker(tmp_path / "data") as broker,
        WirePeer(broker.bootstrap, client_id="c" * 15_000) as peer,
    ):
        peer.ask(ApiKey.FIND_COORDINATOR, 2, key="first", key_type=0)  # creates the topic of the groups
        ready = lambda: join(peer, "first", b"", 4).error_code == ErrorCode.member_id_required  # noqa: E731
        eventually(ready, "the coordinator has loaded its groups")
        before = rss_bytes(broker)
        errors = [join(peer, "group", b"", 4).error_code for _ in range(8_000)]
        assert set(errors) == {ErrorCode.member_id_required, ErrorCode.group_max_size_reached}
        assert errors[-1] == ErrorCode.group_max_size_reached
        assert rss_bytes(broker) - before < METADATA_BYTES_MAX + 24 * MIB


def test_protocols_that_no_member_has_any_more_are_not_kept(tmp_path: Path) -> None:
    """A member joins with 12 MB of names of protocols, and leaves, 20 times."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with NilometerBroker(tmp_path / "data", settings) as broker, WirePeer(broker.bootstrap) as peer:
        peer.ask(ApiKey.FIND_COORDINATOR, 2, key="first", key_type=0)  # creates the topic of the groups
        ready = lambda: join(peer, "first", b"").error_code == ErrorCode.none  # noqa: E731
        eventually(ready, "the coordinator has loaded its groups")
        before = rss_bytes(broker)
        for number in range(20):
            names = tuple(f"{number}-{name}-" + "p" * 30_000 for name in range(400))
            joined = join(peer, "group", b"", protocols=names)
            assert joined.error_code == ErrorCode.none
            left = peer.ask(ApiKey.LEAVE_GROUP, 2, group_id="group", member_id=joined.member_id)
            assert left.error_code == ErrorCode.none
        assert rss_bytes(broker) - before < 96 * MIB


def test_names_of_topics_that_cannot_exist_are_not_kept(tmp_path: Path) -> None:
    """A connection remembers the batches of idempotent producers that were rejected."""
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, b"")
    records = builder.build(producer_id=7, producer_epoch=0, base_sequence=0)
    with NilometerBroker(tmp_path / "data") as broker, WirePeer(broker.bootstrap) as peer:
        before = rss_bytes(broker)
        for number in range(3_000):
            fields = produce_fields(9, f"{number}-" + "n" * 32_000, {0: records})
            (answered,) = peer.ask(ApiKey.PRODUCE, 9, **fields).responses
            assert answered.partition_responses[0].error_code == ErrorCode.unknown_topic_or_partition
        assert rss_bytes(broker) - before < 48 * MIB


def test_groups_with_long_ids_are_not_created(tmp_path: Path) -> None:
    """Each offset that a group commits is a record with the group's id, as is the tombstone of each."""
    with NilometerBroker(tmp_path / "data") as broker, WirePeer(broker.bootstrap) as peer:
        create(peer, TOPIC)
        peer.ask(ApiKey.FIND_COORDINATOR, 2, key="first", key_type=0)  # creates the topic of the groups
        eventually(lambda: commit(peer, "g") == ErrorCode.none, "the coordinator has loaded its groups")
        assert commit(peer, "g" * GROUP_ID_MAX) == ErrorCode.none
        assert commit(peer, "g" * (GROUP_ID_MAX + 1)) == ErrorCode.invalid_group_id
        assert join(peer, "g" * (GROUP_ID_MAX + 1), b"").error_code == ErrorCode.invalid_group_id


def commit(peer: WirePeer, group: str) -> ErrorCode:
    """Commit an offset without being a member."""
    key = ApiKey.OFFSET_COMMIT
    partition = make(
        key,
        7,
        "OffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=1,
        committed_leader_epoch=-1,
        committed_metadata="",
    )
    topic = make(key, 7, "OffsetCommitRequestTopic", name=TOPIC, partitions=(partition,))
    answer = peer.ask(key, 7, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=(topic,))
    return answer.topics[0].partitions[0].error_code


def test_a_fetch_session_keeps_no_names_that_no_topic_may_have(broker: NilometerBroker) -> None:
    before = rss_bytes(broker)
    with WirePeer(broker.bootstrap) as peer:
        for number in range(20):
            topics = tuple(
                make(
                    ApiKey.FETCH,
                    11,
                    "FetchTopic",
                    topic=f"{number}-{topic}-" + "x" * 30_000,
                    partitions=(make(ApiKey.FETCH, 11, "FetchPartition", partition=0),),
                )
                for topic in range(250)
            )
            assert peer.ask(ApiKey.FETCH, 11, session_epoch=0, topics=topics).session_id == 0
    assert rss_bytes(broker) - before < 64 * MIB


def join(
    peer: WirePeer, group: str, metadata: bytes, version: int = 3, protocols: tuple[str, ...] = ("range",)
) -> Message:
    kind = "JoinGroupRequestProtocol"
    offered = tuple(
        make(ApiKey.JOIN_GROUP, version, kind, name=name, metadata=metadata) for name in protocols
    )
    return peer.ask(
        ApiKey.JOIN_GROUP,
        version,
        group_id=group,
        session_timeout_ms=60_000 if version < 4 else 1_800_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=offered,
    )


@pytest.mark.parametrize("kind", ["fetch", "produce", "configs"])
def test_a_client_that_does_not_read_is_not_served_on(broker: NilometerBroker, kind: str) -> None:
    """It may ask for gigabytes; one response and some small ones is what is kept for it."""
    match kind:
        case "fetch":
            request = fetch_request(TOPIC)
        case "produce":
            request = produce_request("nowhere", b"v")
        case _:
            request = configs_request()
    frame = encode_request(1, "greedy", request)
    before = rss_bytes(broker)
    with connect(broker) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(1.0)
        sent = send_until_refused(client, frame * (1 + CHUNK_BYTES // len(frame)))
        assert sent < UNREAD_BYTES, "the broker stops reading from a client that does not read"
        assert answers(broker), "others are served"
        assert rss_bytes(broker) - before < 2 * 57_671_680, "no more than a response or two"
    eventually(lambda: rss_bytes(broker) - before < 48 * MIB, "what was kept for it is given back")


@pytest.mark.parametrize(("clients", "each"), [(40, 1), (100, 50)], ids=["one-each", "pipelined"])
def test_fetches_that_no_client_reads_take_a_bounded_part_of_the_memory(
    broker: NilometerBroker, clients: int, each: int
) -> None:
    frame = encode_request(1, "greedy", fetch_request(TOPIC)) * each
    before = rss_bytes(broker)
    with ExitStack() as stack:
        for _ in range(clients):
            client = stack.enter_context(connect(broker))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(frame)
        for _ in range(10):
            assert answers(broker), "others are served"
        # What is held, two responses being encoded, and what each connection has given to the system.
        assert rss_bytes(broker) - before < 3 * HELD_BYTES_MAX
    eventually(lambda: rss_bytes(broker) - before < 48 * MIB, "what was kept for them is given back")


WIDE_PARTITIONS = 257
"""More than a fetch reads in one piece."""
GREEDY_CLIENTS = 200
TLS_CLIENTS = 100


@pytest.fixture(scope="module")
def wide(broker: NilometerBroker) -> str:
    """A topic with 5 MB in many partitions."""
    with WirePeer(broker.bootstrap) as peer:
        answer = peer.ask(
            ApiKey.CREATE_TOPICS, 7, topics=(new_topic("wide", WIDE_PARTITIONS),), timeout_ms=10_000
        )
        assert answer.topics[0].error_code == ErrorCode.none
        for index in range(WIDE_PARTITIONS):
            fields = produce_fields(9, "wide", {index: one_batch(bytes(20_000))})
            (answered,) = peer.ask(ApiKey.PRODUCE, 9, **fields).responses
            assert answered.partition_responses[0].error_code == ErrorCode.none
    return "wide"


@pytest.fixture(scope="module")
def batch_of_30_mb(broker: NilometerBroker) -> str:
    with WirePeer(broker.bootstrap) as peer:
        allowed = make(
            ApiKey.CREATE_TOPICS, 7, "CreatableTopicConfig", name="max.message.bytes", value=str(40 * MIB)
        )
        answer = peer.ask(
            ApiKey.CREATE_TOPICS, 7, topics=(new_topic("large", configs=(allowed,)),), timeout_ms=10_000
        )
        assert answer.topics[0].error_code == ErrorCode.none
        assert produce(peer, "large", bytes(30 * MIB)) == ErrorCode.none
    return "large"


@pytest.mark.parametrize("kind", ["waits for more", "many partitions", "one large batch", "not in memory"])
def test_fetched_records_take_a_bounded_part_of_the_memory(
    broker: NilometerBroker, wide: str, batch_of_30_mb: str, kind: str
) -> None:
    """The fetch waits for more than there is, or is read in slices beside others, or its batch is large."""
    match kind:
        case "waits for more":
            request = fetch_request(TOPIC, min_bytes=2**31 - 1)
        case "many partitions":
            request = fetch_request(wide, partitions=range(WIDE_PARTITIONS))
        case _:
            request = fetch_request(batch_of_30_mb)
    if kind == "not in memory":
        (path,) = broker.data_dir.glob(f"{batch_of_30_mb}-0/*.log")
        with path.open("rb") as log:
            os.fsync(log.fileno())
            os.posix_fadvise(log.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    frame = encode_request(1, "greedy", request)
    before = rss_bytes(broker)
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(broker)) for _ in range(GREEDY_CLIENTS)]
        for client in clients:
            client.sendall(frame)
        unanswered = set[socket.socket]() if kind == "waits for more" else set(clients)
        for _ in range(10):
            assert answers(broker), "others are served"
        while unanswered:
            answered, _, _ = select.select(unanswered, [], [], 20)
            assert answered
            unanswered.difference_update(answered)
        assert rss_bytes(broker) - before < 3 * HELD_BYTES_MAX
    eventually(lambda: rss_bytes(broker) - before < 48 * MIB, "what was kept for them is given back")


@pytest.mark.parametrize("kind", ["many batches", "one large batch"])
def test_fetched_records_take_a_bounded_part_of_the_memory_over_tls(tmp_path: Path, kind: str) -> None:
    """What is encrypted is counted, too; and a client that reads gets all of a response."""
    large = kind == "one large batch"
    with SecuredBroker(tmp_path) as secured, ExitStack() as stack:
        broker, topic = secured.broker, f"{PREFIX}topic"
        with WirePeer(broker.bootstrap) as peer:
            allowed = make(
                ApiKey.CREATE_TOPICS, 7, "CreatableTopicConfig", name="max.message.bytes", value=str(40 * MIB)
            )
            created = peer.ask(
                ApiKey.CREATE_TOPICS, 7, topics=(new_topic(topic, configs=(allowed,)),), timeout_ms=10_000
            )
            assert created.topics[0].error_code == ErrorCode.none
            for _ in range(1 if large else 8):
                assert produce(peer, topic, bytes((30 if large else 1) * MIB)) == ErrorCode.none
        before, frame = rss_bytes(broker), encode_request(1, "greedy", fetch_request(topic))
        clients = [stack.enter_context(over_tls(secured)) for _ in range(TLS_CLIENTS)]
        for client in clients:
            client.sendall(frame)
        unanswered = set(clients)
        while unanswered:
            answered, _, _ = select.select(unanswered, [], [], 20)
            assert answered
            unanswered.difference_update(answered)
        assert answers(broker), "others are served"
        assert rss_bytes(broker) - before < 3 * HELD_BYTES_MAX
        (size,) = struct.unpack(">i", clients[0].recv(4))
        assert size > (30 if large else 3) * MIB
        while size:
            size -= len(clients[0].recv(size))


def over_tls(secured: SecuredBroker) -> ssl.SSLSocket:
    plain = socket.create_connection((HOST, secured.mutual), timeout=20)
    return secured.certified.wrap_socket(plain, server_hostname=HOST)


def test_a_burst_from_many_connections_holds_no_one(tmp_path: Path) -> None:
    """1,500 connections send some requests each, at the same time, that have long answers. They are handled
    in turns: a neighbour gets many answers meanwhile, and few of the requests are in memory as values."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    asked = make(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        "DescribeConfigsResource",
        resource_type=4,
        resource_name="1",
        configuration_keys=None,
    )
    request = api(ApiKey.DESCRIBE_CONFIGS, 4).request(resources=(asked,) * 10, include_documentation=True)
    frame = encode_request(1, "many", request)
    with NilometerBroker(tmp_path / "data") as broker, ExitStack() as stack:
        before = rss_bytes(broker)
        last = stack.enter_context(connect(broker))
        with WirePeer(broker.bootstrap) as neighbour:
            clients = [stack.enter_context(connect(broker)) for _ in range(BURST_CONNECTIONS)]
            for client in (*clients, last):
                client.sendall(frame * 4)
            answers = 0
            while not select.select([last], [], [], 0)[0]:
                assert neighbour.ask(ApiKey.API_VERSIONS, 3, **SOFTWARE).error_code == ErrorCode.none
                answers += 1
        assert answers >= 20
        assert peak_bytes(broker) - before < 192 * MIB


@pytest.mark.parametrize("crowd_is_at", ["another address", "the same address"])
def test_a_neighbour_of_a_crowd_is_served_before_most_of_it(
    broker: NilometerBroker, crowd_is_at: str
) -> None:
    """1,500 connections of one client send many requests each. A neighbour that asks then waits for a few of
    them: clients take turns by address, and those of one address by client id."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    everywhere = crowd_is_at == "another address"
    request = api(ApiKey.API_VERSIONS, 3).request(**SOFTWARE)
    source = ("127.0.0.2", 0) if everywhere else None
    with ExitStack() as stack:
        answered = select.poll()
        crowd = [
            stack.enter_context(socket.create_connection((HOST, broker.port), 20, source))
            for _ in range(BURST_CONNECTIONS)
        ]
        neighbour = stack.enter_context(WirePeer(broker.bootstrap, "neighbour"))
        neighbour.ask(ApiKey.API_VERSIONS, 3, **SOFTWARE)
        for number, client in enumerate(crowd):
            answered.register(client, select.POLLIN)
            client.sendall(
                encode_request(1, f"crowd-{number}" if everywhere else "crowd", request) * CROWD_PIPELINED
            )
        before = len(answered.poll(0))
        neighbour.ask(ApiKey.API_VERSIONS, 3, **SOFTWARE)
        meanwhile = len(answered.poll(0)) - before
    assert before < BURST_CONNECTIONS // 2, "the crowd waits when the neighbour asks"
    assert meanwhile < BURST_CONNECTIONS // 4


def eventually_connected(broker: NilometerBroker, stack: ExitStack) -> WirePeer:
    peers = list[WirePeer]()

    def is_connected() -> bool:
        peer = stack.enter_context(WirePeer(broker.bootstrap))
        try:
            peer.ask(ApiKey.API_VERSIONS, 3, **SOFTWARE)
        except (ConnectionEnded, OSError):
            return False
        peers.append(peer)
        return True

    eventually(is_connected, "a connection is served")
    return peers[0]


def test_connections_leave_descriptors_for_the_files_of_logs(tmp_path: Path) -> None:
    """A log directory that no file can be opened in is taken offline, and a broker without any stops."""
    settings = {"replica.high.watermark.checkpoint.interval.ms": "100", "log.segment.bytes": "1048576"}
    with NilometerBroker(tmp_path / "data", settings) as broker:
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (200, 200))
        with ExitStack() as stack:
            clients = [stack.enter_context(connect(broker)) for _ in range(300)]
            eventually(lambda: "Connections are closed at once" in broker.output, "no more are accepted")
            assert descriptors(broker) <= 110
            clients[0].close()
            peer = eventually_connected(broker, stack)
            create(peer, "more")
            for number in range(8):
                assert produce(peer, "more", b"%d" % number * 500_000) == ErrorCode.none
            checkpoint = broker.data_dir / "recovery-point-offset-checkpoint"
            eventually(
                lambda: checkpoint.exists() and "more 0" in checkpoint.read_text(), "checkpoints are written"
            )
        eventually(lambda: descriptors(broker) < 40, "the descriptors are given back")
        assert answers(broker)
        assert "offline" not in broker.output


def send_until_refused(client: socket.socket, data: bytes) -> int:
    """How many bytes went out before the other side took nothing for a second."""
    sent = 0
    while sent < UNREAD_BYTES:
        left = memoryview(data)
        while left:
            try:
                count = client.send(left)
            except TimeoutError:
                return sent
            sent += count
            left = left[count:]
    return sent


def test_idle_connections_cost_little(broker: NilometerBroker) -> None:
    """2,000 of them: 16 KiB each at most, and the broker needs no time for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, IDLE_CONNECTIONS + 1000)), hard))
    before, open_before = rss_bytes(broker), descriptors(broker)
    question = encode_request(1, "idle", api(ApiKey.API_VERSIONS, 0).request())
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(broker)) for _ in range(IDLE_CONNECTIONS)]
        for client in clients:
            client.sendall(question)
        for client in clients:
            assert client.recv(4096)
        assert rss_bytes(broker) - before < IDLE_CONNECTIONS * 16 * 1024
        assert descriptors(broker) >= IDLE_CONNECTIONS
        assert answers(broker)
    eventually(lambda: descriptors(broker) <= open_before + 5, "their descriptors are given back")


def test_idle_connections_are_closed(tmp_path: Path) -> None:
    """Those that do not take their answers too: what is kept for them would be kept for ever."""
    with NilometerBroker(tmp_path / "data", {"connections.max.idle.ms": "400"}) as broker:
        with WirePeer(broker.bootstrap) as silent:
            assert silent.is_ended()
        question = encode_request(1, "greedy", configs_request())
        before = descriptors(broker)
        with connect(broker) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(1.0)
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                while True:
                    send_until_refused(client, question * 1000)
            eventually(lambda: descriptors(broker) <= before, "its descriptor is given back")


def test_clients_that_leave_while_they_are_served(broker: NilometerBroker) -> None:
    """Whatever a request was about to do, it is done or it is not: what follows is served as ever."""
    for number in range(100):
        topic = new_topic(f"left-{number % 10}")
        names = (make(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name=f"left-{number % 10}"),)
        create_it = api(ApiKey.CREATE_TOPICS, 7).request(topics=(topic,), timeout_ms=1000)
        delete_it = api(ApiKey.DELETE_TOPICS, 6).request(topics=names, timeout_ms=1000)
        with connect(broker) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(encode_request(1, "leaving", create_it if number % 3 else delete_it))
            if number % 2:
                client.sendall(encode_request(2, "leaving", fetch_request(TOPIC)))
    with WirePeer(broker.bootstrap) as peer:
        create(peer, "after")
        assert produce(peer, "after", b"value") == ErrorCode.none


def test_the_lines_about_connections_are_bounded(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "data") as broker:
        for _ in range(1_000):
            with connect(broker) as client:
                client.sendall(struct.pack(">i", -1))
                assert client.recv(1) == b""
        assert lines_in_a_second(broker, "Closing the connection") <= LINES_PER_SECOND


def lines_in_a_second(broker: NilometerBroker, words: str) -> int:
    """Return in how many lines of one second these words are, at most."""
    lines = [line for line in broker.output.splitlines() if words in line]
    return max(Counter(line.partition(",")[0] for line in lines).values())


def test_the_lines_about_records_that_cannot_be_read_are_bounded(tmp_path: Path) -> None:
    """Nothing looks into compressed batches that are appended: who looks for a time stamp finds them."""
    key, partitions = ApiKey.LIST_OFFSETS, 64
    unreadable = pack_batch(with_codec(read_header(one_batch(b"value")), Codec.GZIP), b"no gzip")
    with NilometerBroker(tmp_path / "data") as broker, WirePeer(broker.bootstrap) as peer:
        topic = new_topic(TOPIC, partitions)
        peer.ask(ApiKey.CREATE_TOPICS, 7, topics=(topic,), timeout_ms=10_000)
        batches = dict.fromkeys(range(partitions), unreadable)
        [answer] = peer.ask(ApiKey.PRODUCE, 9, **produce_fields(9, TOPIC, batches)).responses
        assert {one.error_code for one in answer.partition_responses} == {ErrorCode.none}
        asked = tuple(
            make(key, 5, "ListOffsetsPartition", partition_index=index, timestamp=1)
            for index in range(partitions)
        )
        for _ in range(10):
            [answer] = peer.ask(
                key, 5, topics=(make(key, 5, "ListOffsetsTopic", name=TOPIC, partitions=asked),)
            ).topics
            assert {one.error_code for one in answer.partitions} == {ErrorCode.kafka_storage_error}
        assert lines_in_a_second(broker, "unreadable records") <= LINES_PER_SECOND


def test_the_lines_about_wrong_proofs_are_bounded(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "data") as broker:
        with WirePeer(broker.bootstrap) as peer:
            cluster_id = peer.ask(ApiKey.METADATA, 9, topics=()).cluster_id
        begin = ProveBrokerRequest(
            cluster_id=cluster_id, broker_id=2, expected_broker_id=1, nonce=bytes(NONCE_BYTES)
        )
        for _ in range(500):
            with WirePeer(broker.bootstrap) as peer:
                peer.socket.sendall(encode_request(1, "2", begin))
                peer.receive()
                peer.socket.sendall(encode_request(2, "2", ProveBrokerRequest(proof=b"wrong")))
                assert peer.is_ended()
        assert lines_in_a_second(broker, "its proof is wrong") <= LINES_PER_SECOND


def test_what_clients_call_themselves_is_not_kept(tmp_path: Path) -> None:
    longest = "a" * 32_767
    with NilometerBroker(tmp_path / "data") as broker, ExitStack() as stack:
        before = rss_bytes(broker)
        for _ in range(500):
            peer = stack.enter_context(WirePeer(broker.bootstrap))
            named = {"client_software_name": longest, "client_software_version": longest}
            assert peer.ask(ApiKey.API_VERSIONS, 3, **named).error_code == ErrorCode.none
        assert rss_bytes(broker) - before < 500 * len(longest)


def test_a_client_above_max_connections_is_turned_away(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "data", {"max.connections": "3"}) as broker, ExitStack() as stack:
        peers = [stack.enter_context(WirePeer(broker.bootstrap)) for _ in range(3)]
        for peer in peers:
            assert peer.ask(ApiKey.API_VERSIONS, 0).error_code == ErrorCode.none
        with WirePeer(broker.bootstrap) as fourth:
            assert fourth.is_ended()
        peers[0].close()

        def takes_another() -> bool:
            with WirePeer(broker.bootstrap) as peer:
                try:
                    return peer.ask(ApiKey.API_VERSIONS, 0).error_code == ErrorCode.none
                except (ConnectionEnded, OSError):
                    return False

        eventually(takes_another, "a place that is given up can be had")


def test_client_ids_that_a_default_quota_measures_are_not_kept_whole(broker: NilometerBroker) -> None:
    key = ApiKey.ALTER_CLIENT_QUOTAS
    entry = make(
        key,
        0,
        "EntryData",
        entity=(make(key, 0, "EntityData", entity_type="client-id", entity_name=None),),
        ops=(make(key, 0, "OpData", key="request_percentage", value=10_000.0),),
    )
    question = api(ApiKey.METADATA, 1).request(topics=())
    with WirePeer(broker.bootstrap) as peer:
        answer = peer.ask(key, 0, entries=(entry,), validate_only=False)
        assert answer.entries[0].error_code == ErrorCode.none
        before = rss_bytes(broker)
        for number in range(CLIENT_IDS):
            client_id = f"{number}\N{CROCODILE}".ljust(CLIENT_ID_CHARACTERS, "x")
            peer.socket.sendall(encode_request(1, client_id, question))
            peer.hear(ApiKey.METADATA, 1)
        assert rss_bytes(broker) - before < CLIENT_IDS_BYTES_MAX
