"""The producer against a cluster that loses answers, moves leaders and forgets: in order and once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from nilometer.client.network.cluster_metadata import ClusterMetadata, TopicPartition
from nilometer.client.producer.batch import Deliveries, Delivery, ProducerBatch, RecordMetadata
from nilometer.client.producer.idempotence import IN_FLIGHT_MAX, IdempotenceState, Verdict
from nilometer.client.producer.partitioner import partition_for_key
from nilometer.client.producer.producer import Producer
from nilometer.config import ConfigError
from nilometer.runtime import Runtime
from nilometer.runtime.runtime import SeededEntropy
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import check_batch, read_header
from nilometer.wire.records import BatchBuilder, NumberedHeaders, decode_records
from support.scripted.log_cluster import LOSE_ANSWER, LogCluster
from support.scripted.scripted_broker import HANG_UP, SILENCE

QUICK = {
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 4,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 4,
    "linger.ms": 1,
}


def producer_of(cluster: LogCluster, seed: int = 1, partitioner: Any = None, **keys: Any) -> Producer:
    system = Runtime.system()
    runtime = Runtime(system.clock, system.disk, system.network, SeededEntropy(random.Random(seed)))
    given = {name.replace("_", "."): value for name, value in keys.items()}
    given = {"bootstrap.servers": cluster.addresses, **QUICK, **given}
    return Producer(runtime, given, partitioner=partitioner)


def values(cluster: LogCluster, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in cluster.logs["t", partition].records()]


async def test_p1_acknowledgement_names_place_and_time() -> None:
    async with LogCluster(topics={"t": 2}) as cluster, producer_of(cluster) as producer:
        first = await producer.send_and_wait("t", b"a", partition=1, timestamp=5)
        second = await producer.send_and_wait(
            "t", b"b", key=b"k", partition=1, timestamp=6, headers=[("h", b"1"), ("n", None)]
        )
        assert first == RecordMetadata("t", 1, 0, 5)
        assert second == RecordMetadata("t", 1, 1, 6)
        record = cluster.logs["t", 1].records()[1]
        assert (record.key, record.value, record.headers) == (b"k", b"b", (("h", b"1"), ("n", None)))


async def test_p2_keys_decide() -> None:
    async with LogCluster(topics={"t": 5}) as cluster, producer_of(cluster) as producer:
        for number in range(50):
            await producer.send("t", b"%d" % number, key=b"k%d" % (number % 10))
        await producer.flush()
        for partition in range(5):
            for record in cluster.logs["t", partition].records():
                assert record.key is not None
                assert partition_for_key(record.key, 5) == partition


async def test_p2_users_own_partitioner_is_asked() -> None:
    def by_length(_topic: str, _key: bytes | None, value: bytes | None, known: ClusterMetadata) -> int:
        return len(value or b"") % known.partition_count("t")

    async with (
        LogCluster(topics={"t": 3}) as cluster,
        producer_of(cluster, partitioner=by_length) as producer,
    ):
        for size in range(6):
            await producer.send("t", b"x" * size)
        await producer.flush()
        assert values(cluster, 2) == [b"xx", b"xxxxx"]


@pytest.mark.parametrize("codec", list(Codec))
async def test_batches_are_compressed_as_asked(codec: Codec) -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        async with producer_of(cluster, compression_type=codec.name.lower()) as producer:
            for number in range(100):
                await producer.send("t", b"line %d" % number)
        assert read_header(cluster.logs["t", 0].batches[0]).codec == codec
        assert values(cluster) == [b"line %d" % number for number in range(100)]


@pytest.mark.parametrize("topic_ids", [True, False])
async def test_topics_with_and_without_ids(topic_ids: bool) -> None:
    async with LogCluster(topics={"t": 1}, topic_ids=topic_ids) as cluster, producer_of(cluster) as producer:
        assert (await producer.send_and_wait("t", b"a")).offset == 0


async def test_p4_acks_0_does_not_wait() -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        for broker in cluster.brokers:
            append = broker.handlers[ApiKey.PRODUCE]

            def silent(request: Any, codec: Any, append: Any = append) -> Any:
                append(request, codec)
                return SILENCE

            broker.handlers[ApiKey.PRODUCE] = silent
        async with producer_of(cluster, acks=0) as producer:
            assert (await producer.send_and_wait("t", b"a")).offset == -1
            await cluster.brokers[0].wait_for(ApiKey.PRODUCE, 1)
        assert cluster.brokers[0].requests[-1][1].acks == 0
        assert values(cluster) == [b"a"]


async def test_p4_error_of_the_broker_reaches_the_sender() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        cluster.fault = lambda key, _number: ErrorCode.invalid_record if key == ApiKey.PRODUCE else None
        with pytest.raises(KafkaError, match="INVALID_RECORD"):
            await producer.send_and_wait("t", b"a")
        cluster.fault = lambda _key, _number: None
        # The sequence that the refused batch had is given to the next one.
        assert (await producer.send_and_wait("t", b"b")).offset == 0
        assert producer.client.metadata.cluster_id == "scripted"


async def test_p3_lost_acknowledgement_is_not_written_twice() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        cluster.fault = lambda key, number: LOSE_ANSWER if key == ApiKey.PRODUCE and number <= 3 else None
        assert (await producer.send_and_wait("t", b"a")).offset == 0
        assert values(cluster) == [b"a"]
        assert cluster.count(ApiKey.PRODUCE) == 4


async def test_producer_follows_its_leader() -> None:
    async with LogCluster(3, topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        await producer.send_and_wait("t", b"a")
        cluster.move_leader("t", 0, 3)
        await producer.send_and_wait("t", b"b")
        assert values(cluster) == [b"a", b"b"]
        assert cluster.brokers[2].count(ApiKey.PRODUCE) == 1


async def test_batch_that_is_too_large_for_the_broker_is_halved_until_it_fits() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, producer_of(cluster, linger_ms=20) as producer:
        append = cluster.brokers[0].handlers[ApiKey.PRODUCE]

        def picky(request: Any, codec: Any) -> Any:
            data = request.topic_data[0].partition_data[0].records
            if read_header(data).records_count > 3:
                cluster.fault = lambda _key, _number: ErrorCode.message_too_large
            answer = append(request, codec)
            cluster.fault = lambda _key, _number: None
            return answer

        cluster.brokers[0].handlers[ApiKey.PRODUCE] = picky
        deliveries = [await producer.send("t", b"%d" % number) for number in range(10)]
        waiter = asyncio.create_task(_result(deliveries[7]))
        await producer.flush()
        assert [delivery.result().offset for delivery in deliveries] == list(range(10))
        assert (await waiter).offset == 7
        assert values(cluster) == [b"%d" % number for number in range(10)]


async def test_record_above_the_limit_is_refused_at_once() -> None:
    async with (
        LogCluster(topics={"t": 1}) as cluster,
        producer_of(cluster, max_request_size=1000) as producer,
    ):
        with pytest.raises(KafkaError, match=r"MESSAGE_TOO_LARGE.*max\.request\.size is 1000"):
            await producer.send("t", b"x" * 1000)


async def test_partition_that_is_not_there_is_refused_at_once() -> None:
    async with LogCluster(topics={"t": 2}) as cluster, producer_of(cluster, max_block_ms=1_000) as producer:
        with pytest.raises(KafkaError, match="has 2 partitions; there is no partition 2"):
            await producer.send("t", b"", partition=2)
        with pytest.raises(KafkaError, match="topic nowhere"):
            await producer.send("nowhere", b"")


async def test_full_buffer_slows_the_sender_down_and_then_refuses() -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        gate = asyncio.Event()
        append = cluster.brokers[0].handlers[ApiKey.PRODUCE]

        async def gated(request: Any, codec: Any) -> Any:
            await gate.wait()
            return append(request, codec)

        cluster.brokers[0].handlers[ApiKey.PRODUCE] = gated
        async with producer_of(cluster, buffer_memory=2000, max_block_ms=50) as producer:
            accepted = [await producer.send("t", b"%d" % n + b"x" * 400) for n in range(4)]
            with pytest.raises(KafkaError, match=r"no room in buffer\.memory"):
                await producer.send("t", b"x" * 400)
            producer.config = producer.config.__class__(
                **{name: getattr(producer.config, name) for name in producer.config.__slots__}
                | {"max_block_ms": 30_000}
            )
            waiting = [asyncio.create_task(producer.send("t", b"late %d" % n + b"x" * 400)) for n in range(6)]
            await asyncio.sleep(0)
            gate.set()
            accepted += await asyncio.gather(*waiting)
            await producer.flush()
            assert [delivery.result().offset for delivery in accepted] == list(range(10))


async def test_record_that_cannot_be_delivered_fails_in_time() -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        cluster.fault = lambda key, _number: HANG_UP if key == ApiKey.PRODUCE else None
        async with producer_of(cluster, delivery_timeout_ms=60, request_timeout_ms=50) as producer:
            with pytest.raises(KafkaError, match="not acknowledged after"):
                await producer.send_and_wait("t", b"lost")
            cluster.fault = lambda _key, _number: None
            assert (await producer.send_and_wait("t", b"kept")).offset == 0
        assert values(cluster) == [b"kept"]


async def test_a_delivery_that_times_out_names_what_the_broker_said_last() -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        cluster.fault = lambda key, _: ErrorCode.not_enough_replicas if key == ApiKey.PRODUCE else None
        async with producer_of(cluster, delivery_timeout_ms=600, request_timeout_ms=500) as producer:
            with pytest.raises(KafkaError, match="attempts failed with NOT_ENOUGH_REPLICAS") as failed:
                await producer.send_and_wait("t", b"refused")
            assert failed.value.code is ErrorCode.request_timed_out


async def test_written_but_given_up_does_not_disturb_what_follows() -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        cluster.fault = lambda key, _number: LOSE_ANSWER if key == ApiKey.PRODUCE else None
        async with producer_of(cluster, delivery_timeout_ms=60, request_timeout_ms=50) as producer:
            with pytest.raises(KafkaError, match="not acknowledged after"):
                await producer.send_and_wait("t", b"written all the same")
            cluster.fault = lambda _key, _number: None
            assert (await producer.send_and_wait("t", b"next")).offset == 1


async def test_broker_that_forgot_the_producer_gets_a_new_epoch() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        for number in range(3):
            await producer.send_and_wait("t", b"%d" % number)
        (state,) = cluster.logs["t", 0].producers.values()
        state.last = [(7, 9, 0)]  # the broker lost the newest sequences, as after an unclean election
        assert (await producer.send_and_wait("t", b"3")).offset == 3
        assert state is not next(iter(cluster.logs["t", 0].producers.values()))
        header = read_header(cluster.logs["t", 0].batches[-1])
        assert (header.producer_epoch, header.base_sequence) == (1, 0)


def test_what_may_be_written_keeps_its_sequence() -> None:
    """A broker that was restarted knows only the last batch of a producer: earlier ones are out of order."""
    state = IdempotenceState()
    state.adopt(7, 0)
    batches = [ProducerBatch(TopicPartition("t", 0), None, 0, 1_000) for _ in range(3)]
    for batch in batches:
        batch.records_count = 1
        state.begin(batch)
    state.on_acknowledged(batches.pop(0))
    batches[0].maybe_written = True
    assert state.judge(batches[0], ErrorCode.out_of_order_sequence_number) is Verdict.RETRY
    state.maybe_raise_epoch()
    assert [(batch.producer_epoch, batch.base_sequence) for batch in batches] == [(0, 1), (0, 2)]
    state.on_failed(batches[0], maybe_written=True)
    assert state.judge(batches[1], ErrorCode.out_of_order_sequence_number) is Verdict.RETRY
    state.maybe_raise_epoch()
    assert (batches[1].producer_epoch, batches[1].base_sequence) == (1, 0)


def test_no_more_goes_ahead_of_a_batch_than_a_broker_remembers() -> None:
    """Two batches wait for an old leader that hangs, and the new one, which has both, answers all others."""
    state = IdempotenceState()
    state.adopt(7, 0)

    def batch() -> ProducerBatch:
        made = ProducerBatch(TopicPartition("t", 0), None, 0, 1_000)
        made.records_count = 1
        return made

    first = batch()
    state.begin(first)
    state.on_acknowledged(first)
    hanging = [batch(), batch()]
    for one in hanging:
        state.begin(one)
    ahead = 0
    while ahead < 10 and state.may_send(following := batch()):
        state.begin(following)
        state.on_acknowledged(following)
        ahead += 1
    assert ahead == IN_FLIGHT_MAX - len(hanging)
    state.on_acknowledged(hanging[0])
    state.on_acknowledged(hanging[1])
    assert state.may_send(batch())


async def test_no_producer_id_fails_what_waits_for_one() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        cluster.fault = lambda key, _number: (
            ErrorCode.cluster_authorization_failed if key == ApiKey.INIT_PRODUCER_ID else None
        )
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await producer.send_and_wait("t", b"a")


async def test_closing_without_time_fails_what_is_left() -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        producer = producer_of(cluster, linger_ms=60_000)
        await producer.start()
        delivery = await producer.send("t", b"a")
        assert not delivery.done()
        await producer.close(timeout_ms=0)
        with pytest.raises(KafkaError, match="the producer was closed"):
            await delivery
        with pytest.raises(KafkaError, match="not open"):
            await producer.send("t", b"b")


async def test_callbacks_hear_of_each_record() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        heard: list[int] = []
        for number in range(3):
            delivery = await producer.send("t", b"%d" % number)
            delivery.add_done_callback(lambda done: heard.append(done.result().offset))
        await producer.flush()
        assert heard == [0, 1, 2]


@pytest.mark.parametrize("seed", range(25))
async def test_p3_order_and_once_each_under_faults(seed: int) -> None:
    """Replay one: pytest tests/unit/client/test_producer.py -k "p3_order_and_once and SEED"."""
    chance = random.Random(seed)
    async with LogCluster(3, topics={"t": 2}) as cluster:

        def fault(key: int, _number: int) -> Any:
            if key != ApiKey.PRODUCE or not failing:
                return None
            if chance.random() < 0.15:
                cluster.move_leader("t", chance.randrange(2), chance.randint(1, 3))
            return chance.choice(
                [
                    None,
                    None,
                    None,
                    HANG_UP,
                    LOSE_ANSWER,
                    ErrorCode.not_leader_or_follower,
                    ErrorCode.not_enough_replicas,
                    ErrorCode.request_timed_out,
                ]
            )

        failing = True
        cluster.fault = fault
        sent: list[list[bytes]] = [[], []]
        deliveries: list[Delivery] = []
        options = {"batch_size": chance.choice([1, 200, 2000]), "linger_ms": chance.choice([0, 2])}
        async with producer_of(cluster, seed, **options) as producer:
            for number in range(300):
                partition = chance.randrange(2)
                sent[partition].append(b"%d" % number)
                deliveries.append(await producer.send("t", b"%d" % number, partition=partition))
                if chance.random() < 0.05:
                    await asyncio.sleep(0.002)
            failing = False
            await producer.flush()
        for partition in range(2):
            assert values(cluster, partition) == sent[partition], f"seed {seed}"
        for number, delivery in enumerate(deliveries):
            place = delivery.result()
            if place.offset >= 0:
                assert sent[place.partition][place.offset] == b"%d" % number


@pytest.mark.parametrize("seed", range(10))
async def test_p3_given_up_batches_leave_order_and_no_repetition(seed: int) -> None:
    """Batches are given up while others are in flight. What is acknowledged is there, once, and in order."""
    chance = random.Random(seed)
    async with LogCluster(topics={"t": 1}) as cluster:

        def fault(key: int, _number: int) -> Any:
            if key != ApiKey.PRODUCE or not failing:
                return None
            return chance.choice([None, LOSE_ANSWER, HANG_UP, ErrorCode.not_enough_replicas])

        failing = True
        cluster.fault = fault
        options = {"batch_size": 50, "linger_ms": 0, "delivery_timeout_ms": 25, "request_timeout_ms": 20}
        deliveries: list[Delivery] = []
        async with producer_of(cluster, seed, **options) as producer:
            for number in range(120):
                deliveries.append(await producer.send("t", b"%d" % number))
                if chance.random() < 0.3:
                    await asyncio.sleep(0.002)
            failing = False
            await producer.flush()
        written = [int(value or b"") for value in values(cluster)]
        assert len(written) == len(set(written)), f"seed {seed}: a record was written twice"
        outcomes = await asyncio.gather(*map(_result, deliveries), return_exceptions=True)
        acknowledged = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, RecordMetadata)]
        assert set(acknowledged) <= set(written), f"seed {seed}: an acknowledged record is not there"
        order = [number for number in written if number in set(acknowledged)]
        assert order == sorted(order), f"seed {seed}: acknowledged records changed places"


async def test_one_in_flight_keeps_the_order_without_sequences() -> None:
    async with LogCluster(2, topics={"t": 1}) as cluster:
        keys = {
            "enable_idempotence": False,
            "max_in_flight_requests_per_connection": 1,
            "batch_size": 1,
        }
        cluster.fault = lambda key, number: (
            ErrorCode.not_enough_replicas if key == ApiKey.PRODUCE and number % 3 == 0 else None
        )
        async with producer_of(cluster, **keys) as producer:
            for number in range(30):
                await producer.send("t", b"%d" % number)
        assert values(cluster) == [b"%d" % number for number in range(30)]
        assert read_header(cluster.logs["t", 0].batches[0]).producer_id == -1


def test_settings_that_contradict_each_other() -> None:
    def make(**keys: Any) -> Producer:
        given = {name.replace("_", "."): value for name, value in keys.items()}
        return Producer(Runtime.system(), {"bootstrap.servers": "a:1", **given})

    with pytest.raises(ConfigError, match="acks must be all"):
        make(acks="1", enable_idempotence=True)
    with pytest.raises(ConfigError, match="must be at most 5"):
        make(max_in_flight_requests_per_connection=6, enable_idempotence=True)
    with pytest.raises(ConfigError, match="at least linger"):
        make(delivery_timeout_ms=10)
    assert make().config.idempotent
    assert not make(acks="1").config.idempotent
    assert make(request_timeout_ms=200_000).config.delivery_timeout_ms == 200_005


async def _result(delivery: Delivery) -> RecordMetadata:
    return await delivery


@pytest.mark.parametrize("transactional", [False, True])
def test_a_batch_that_is_encoded_already_gets_another_sequence(transactional: bool) -> None:
    batch = ProducerBatch(TopicPartition("t", 0), BatchBuilder(), 0, 1_000, transactional=transactional)
    assert batch.append(7, b"k", b"v", ()) > 0
    batch.set_sequence(5, 1, 9)
    first = batch.encoded()
    batch.set_sequence(6, 2, 0)
    header = read_header(batch.encoded())
    check_batch(batch.encoded(), 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (6, 2, 0)
    assert header.is_transactional == transactional
    records = [decode_records(data, 0, read_header(data)) for data in (first, batch.encoded())]
    assert [(one.key, one.value, one.timestamp) for [one] in records] == [(b"k", b"v", 7)] * 2


LINES = [b"line %d" % number + b"." * (number % 90) for number in range(500)]
NUMBERED = NumberedHeaders((("path", b"/a"),), "line", 1, ())


async def send_all(producer: Producer, key: bytes | None = None) -> list[tuple[Deliveries, int]]:
    """Send LINES; return the deliveries of each call, and the index of the first of them."""
    found: list[tuple[Deliveries, int]] = []
    start = 0
    while start < len(LINES):
        sent = await producer.send_numbered("t", LINES, start, key=key, headers=NUMBERED)
        found.append((sent, start))
        start += len(sent)
    return found


@pytest.mark.parametrize("key", [None, b"k"])
@pytest.mark.parametrize(
    "settings", [{}, {"buffer_memory": 3_000}, {"partitioner_class": "round_robin"}, {"batch_size": 100}]
)
async def test_numbered_records_are_sent_once_each_with_their_headers(
    key: bytes | None, settings: dict[str, Any]
) -> None:
    settings = {"batch_size": 1_000, "max_block_ms": 30_000, **settings}
    async with LogCluster(topics={"t": 3}) as cluster, producer_of(cluster, **settings) as producer:
        sent = await send_all(producer, key)
        await producer.flush()
        records = {
            (partition, record.offset): record
            for partition in range(3)
            for record in cluster.logs["t", partition].records()
        }
        assert len(records) == len(LINES)
        for deliveries, start in sent:
            for index in range(len(deliveries)):
                place = deliveries[index].result()
                record = records[place.partition, place.offset]
                assert (record.key, record.value) == (key, LINES[start + index])
                assert record.headers == NUMBERED.of(start + index)
            with pytest.raises(IndexError):
                deliveries[len(deliveries)]
        if "partitioner_class" not in settings:
            full = settings.get("buffer_memory") is None and settings["batch_size"] == 1_000
            assert len(sent) < len(LINES) / 5 or not full


async def test_of_numbered_records_in_a_batch_that_was_halved_each_has_its_result() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, producer_of(cluster, batch_size=4_000) as producer:
        append = cluster.brokers[0].handlers[ApiKey.PRODUCE]

        def picky(request: Any, codec: Any) -> Any:
            data = request.topic_data[0].partition_data[0].records
            if read_header(data).records_count > 7:
                cluster.fault = lambda _key, _number: ErrorCode.message_too_large
            answer = append(request, codec)
            cluster.fault = lambda _key, _number: None
            return answer

        cluster.brokers[0].handlers[ApiKey.PRODUCE] = picky
        sent = await send_all(producer)
        await producer.flush()
        assert values(cluster) == LINES
        for deliveries, start in sent:
            assert list(deliveries.to_look_at()) == list(range(len(deliveries)))
            offsets = [deliveries[index].result().offset for index in deliveries.to_look_at()]
            assert offsets == list(range(start, start + len(deliveries)))


async def test_the_last_of_a_batch_that_was_written_whole_tells_the_results_of_all() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, producer_of(cluster) as producer:
        sent = await send_all(producer)
        await producer.flush()
        for deliveries, start in sent:
            assert list(deliveries.to_look_at()) == [len(deliveries) - 1]
            assert deliveries[len(deliveries) - 1].result().offset == start + len(deliveries) - 1


async def test_numbered_records_are_added_up_to_one_that_is_too_large() -> None:
    async with LogCluster(topics={"t": 1}) as cluster, producer_of(cluster, max_request_size=200) as producer:
        await producer.partitions_for("t")
        values_given = [b"a", b"b", b"x" * 200]
        assert len(await producer.send_numbered("t", values_given, 0, headers=NUMBERED)) == 2
        with pytest.raises(KafkaError, match=r"max\.request\.size is 200"):
            await producer.send_numbered("t", values_given, 2, headers=NUMBERED)
        await producer.flush()
        assert values(cluster) == [b"a", b"b"]
