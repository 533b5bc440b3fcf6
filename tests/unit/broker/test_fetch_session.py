"""KIP-227: what a session remembers, refuses and leaves out."""

from __future__ import annotations

import random

import pytest

from nilometer.broker.replicas.delayed_requests import FetchWaiters, FetchWatchable, fetch_went_back
from nilometer.broker.replicas.fetch_session import (
    KEEP_MS,
    SESSION_PARTITIONS_MAX,
    FetchPartition,
    FetchSession,
    FetchSessionCache,
    PartitionKey,
    TopicKey,
    watch_of,
)
from nilometer.runtime.runtime import SeededEntropy
from nilometer.wire.errors import ErrorCode, KafkaError

TOPIC = TopicKey(None, "t")


def cache(slots: int = 2) -> FetchSessionCache:
    return FetchSessionCache(slots, SeededEntropy(random.Random(1)))


def asks(*indexes: int, offset: int = 0, epoch: int = -1) -> list[FetchPartition]:
    return [FetchPartition(TOPIC, index, offset, 1000, current_leader_epoch=epoch) for index in indexes]


def begin(sessions, session_id, epoch, partitions=(), forgotten=(), now_ms=0, by_topic_id=False):
    return sessions.begin(
        session_id, epoch, list(partitions), list(forgotten), by_topic_id=by_topic_id, now_ms=now_ms
    )


def test_a_full_fetch_opens_a_session_and_later_ones_name_only_changes():
    sessions = cache()
    first = begin(sessions, 0, 0, asks(0, 1, 2))
    assert first.session_id > 0
    assert not first.incremental
    second = begin(sessions, first.session_id, 1, asks(1, offset=7), [PartitionKey(TOPIC, 2)])
    assert second.incremental
    assert [(p.partition, p.fetch_offset) for p in second.to_read()] == [(0, 0), (1, 7)]


@pytest.mark.parametrize("name", ["n" * 250, "ä"], ids=["long", "foreign"])
def test_names_that_no_topic_may_have_are_not_kept(name):
    sessions, named = cache(), [FetchPartition(TopicKey(None, name), 0, 0, 1000)]
    assert begin(sessions, 0, 0, named).session_id == 0
    opened = begin(sessions, 0, 0, asks(0))
    with pytest.raises(KafkaError) as caught:
        begin(sessions, opened.session_id, 1, named)
    assert caught.value.code == ErrorCode.fetch_session_id_not_found
    assert len(sessions) == 0


def test_a_wrong_epoch_is_refused():
    sessions = cache()
    opened = begin(sessions, 0, 0, asks(0))
    with pytest.raises(KafkaError) as caught:
        begin(sessions, opened.session_id, 2)
    assert caught.value.code is ErrorCode.invalid_fetch_session_epoch


def test_an_unknown_session_is_refused():
    with pytest.raises(KafkaError) as caught:
        begin(cache(), 77, 1)
    assert caught.value.code is ErrorCode.fetch_session_id_not_found


def test_names_and_ids_do_not_mix():
    sessions = cache()
    opened = begin(sessions, 0, 0, asks(0))
    with pytest.raises(KafkaError) as caught:
        begin(sessions, opened.session_id, 1, by_topic_id=True)
    assert caught.value.code is ErrorCode.fetch_session_topic_id_error


def test_kafka_9338_the_session_keeps_the_readers_leader_epoch():
    sessions = cache()
    opened = begin(sessions, 0, 0, asks(0, epoch=5))
    later = begin(sessions, opened.session_id, 1)
    assert [p.current_leader_epoch for p in later.to_read()] == [5]


def test_only_changes_are_sent():
    session = begin(cache(), 0, 0, asks(0)).session
    key = PartitionKey(TOPIC, 0)

    def told(**outcome):
        return session.must_report(
            key, **{"failed": False, "has_records": False, "high_watermark": 3, "log_start": 0} | outcome
        )

    assert told()
    assert not told()
    assert told(high_watermark=4)
    assert not told(high_watermark=4)
    assert told(high_watermark=4, has_records=True)
    assert told(failed=True)
    assert told(high_watermark=4), "recovery from an error is reported"
    assert told(high_watermark=4, log_start=2)


def test_partitions_with_records_move_to_the_end_so_that_none_starves():
    sessions = cache()
    opened = begin(sessions, 0, 0, asks(0, 1, 2))
    opened.session.must_report(
        PartitionKey(TOPIC, 0), failed=False, has_records=True, high_watermark=1, log_start=0
    )
    later = begin(sessions, opened.session_id, 1)
    assert [p.partition for p in later.to_read()] == [1, 2, 0]


def test_sessions_are_bounded_and_a_recent_one_is_not_evicted():
    sessions = cache(slots=1)
    first = begin(sessions, 0, 0, asks(0), now_ms=0)
    refused = begin(sessions, 0, 0, asks(0), now_ms=KEEP_MS - 1)
    assert refused.session_id == 0
    assert refused.session is None
    later = begin(sessions, 0, 0, asks(0), now_ms=KEEP_MS)
    assert later.session_id not in (0, first.session_id)
    assert len(sessions) == 1


def test_a_final_epoch_closes_the_session():
    sessions = cache()
    opened = begin(sessions, 0, 0, asks(0))
    closing = begin(sessions, opened.session_id, -1, asks(0))
    assert closing.session is None
    assert len(sessions) == 0


def answered(session, index, **outcome):
    """What a fetch that found nothing new says of a partition."""
    quiet = {"failed": False, "has_records": False, "high_watermark": 0, "log_start": 0}
    return session.must_report(PartitionKey(TOPIC, index), **quiet | outcome)


def test_a_partition_that_had_nothing_to_tell_is_not_looked_at_again():
    sessions = cache()
    opened = begin(sessions, 0, 0, asks(0, 1, 2))
    for index in range(3):
        answered(opened.session, index)
    later = begin(sessions, opened.session_id, 1)
    assert later.to_read() == []
    assert not later.is_empty, "there is something to wait for"
    opened.session.mark_dirty(PartitionKey(TOPIC, 1))
    assert [p.partition for p in later.to_read()] == [1]


def test_a_partition_for_which_there_was_no_room_is_looked_at_again():
    sessions = cache()
    opened = begin(sessions, 0, 0, asks(0, 1))
    answered(opened.session, 0, has_more=True)
    answered(opened.session, 1)
    assert [p.partition for p in begin(sessions, opened.session_id, 1).to_read()] == [0]


def test_a_partition_that_found_no_room_comes_before_one_that_was_served():
    sessions = cache()
    opened = begin(sessions, 0, 0, asks(0, 1, 2))
    answered(opened.session, 0, has_records=True)
    answered(opened.session, 1, has_more=True)
    answered(opened.session, 2, has_more=True)
    later = begin(sessions, opened.session_id, 1)
    assert [p.partition for p in later.to_read()] == [1, 2, 0]


def test_a_partition_that_failed_is_looked_at_again():
    sessions = cache()
    opened = begin(sessions, 0, 0, asks(0))
    answered(opened.session, 0, failed=True)
    assert [p.partition for p in begin(sessions, opened.session_id, 1).to_read()] == [0]


def test_a_listener_is_notified_of_each_partition_that_leaves():
    class Watcher:
        def __init__(self):
            self.forgotten = []

        def forget(self, key):
            self.forgotten.append(key.partition)

    sessions = cache()
    opened = begin(sessions, 0, 0, asks(0, 1, 2))
    opened.session.watcher = watcher = Watcher()
    begin(sessions, opened.session_id, 1, (), [PartitionKey(TOPIC, 1)])
    assert watcher.forgotten == [1]
    begin(sessions, opened.session_id, -1, asks(0))
    assert watcher.forgotten == [1, 0, 2]
    opened.session.mark_dirty(PartitionKey(TOPIC, 0))
    assert opened.session.dirty == {}, "an ended session has no partitions"


def test_what_changes_between_look_and_answer_is_looked_at_again():
    """A read off the event loop takes its time, and the answer says what was seen before it."""
    sessions = cache()
    opened = begin(sessions, 0, 0, asks(0, 1))
    session = opened.session
    assert session is not None
    opened.to_read()
    session.mark_dirty(PartitionKey(TOPIC, 1))
    for index in (0, 1):
        session.must_report(
            PartitionKey(TOPIC, index), failed=False, has_records=False, high_watermark=4, log_start=0
        )
    following = begin(sessions, opened.session_id, 1)
    assert [asked.partition for asked in following.to_read()] == [1]
    session.must_report(
        PartitionKey(TOPIC, 1), failed=False, has_records=False, high_watermark=5, log_start=0
    )
    assert begin(sessions, opened.session_id, 2).to_read() == []


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_fetch_that_names_more_than_a_session_may_have_is_refused_by_its_count(monkeypatch, epoch):
    """To add hundreds of thousands of partitions and then to end the session would hold the event loop."""
    sessions, hashed = cache(), []
    monkeypatch.setattr(PartitionKey, "__hash__", lambda key: hashed.append(key) or tuple.__hash__(key))
    opened = begin(sessions, 0, 0, asks(0))
    many, hashed[:] = asks(*range(1, SESSION_PARTITIONS_MAX + 2)), []
    if epoch:
        with pytest.raises(KafkaError) as caught:
            begin(sessions, opened.session_id, epoch, many)
        assert caught.value.code == ErrorCode.fetch_session_id_not_found
        assert len(sessions) == 0
    else:
        assert begin(sessions, opened.session_id, epoch, many).session_id == 0
    assert len(hashed) < 10


def test_after_a_late_fetch_of_a_follower_the_offset_in_its_session_counts_with_the_next_fetch():
    """The present fetch has counted, and is only read again: that does not count."""
    sessions, partition = cache(), Partition()
    opened = begin(sessions, 0, 0, asks(0, offset=31))
    session, key = opened.session, PartitionKey(TOPIC, 0)
    assert session is not None
    watch_of(session, for_replica=True).watch(key, partition)

    def answer():
        session.look()
        session.must_report(key, failed=False, has_records=False, high_watermark=31, log_start=0)

    answer()
    begin(sessions, opened.session_id, 1)
    fetch_went_back(partition)
    answer()
    following = begin(sessions, opened.session_id, 2)
    assert [asked.fetch_offset for asked in following.to_read()] == [31]
    answer()
    assert begin(sessions, opened.session_id, 3).to_read() == []


def test_a_reader_that_asks_again_at_the_same_offset_hears_the_high_watermark_again():
    """It changed its leader epoch while the answer was on its way, and did not take that answer."""
    sessions = cache()
    opened = begin(sessions, 0, 0, asks(0, 1, offset=7, epoch=1))
    outcome = {"failed": False, "has_records": False, "high_watermark": 7, "log_start": 0}
    for index in (0, 1):
        assert opened.session.must_report(PartitionKey(TOPIC, index), **outcome)
    again = begin(sessions, opened.session_id, 1, asks(0, offset=7, epoch=2) + asks(1, offset=8, epoch=1))
    assert again.session.must_report(PartitionKey(TOPIC, 0), **outcome)
    assert not again.session.must_report(PartitionKey(TOPIC, 1), **outcome)


class Partition:
    """What a session watches."""

    def __init__(self) -> None:
        self.fetch_waiters = FetchWaiters()


class Waiting:
    """A fetch that waits: it counts what becomes readable."""

    for_replica = False

    def __init__(self) -> None:
        self.bytes = 0

    def on_readable(self, source: FetchWatchable, byte_count: int) -> None:
        self.bytes += byte_count

    def on_watermark_advanced(self, source: FetchWatchable) -> None: ...

    def complete(self, source: FetchWatchable) -> None: ...


@pytest.mark.parametrize("for_replica", [False, True])
def test_a_change_is_noted_once_unless_a_fetch_waits_or_a_follower_reads(for_replica: bool) -> None:
    partition, asked = Partition(), FetchPartition(TopicKey.of("t"), 0, 0, 1)
    session = FetchSession(1, False, 1, 0)
    session.update((asked,), ())
    watch, waiting = watch_of(session, for_replica=for_replica), Waiting()
    watch.watch(asked.key, partition)
    session.dirty.clear()
    watch.on_readable(partition, 5)
    assert session.dirty == {asked.key: None}
    assert bool(partition.fetch_waiters) is for_replica
    watch.begin_to_wait()
    watch.fetch_waiters.add(waiting)
    for _ in range(2):
        for watcher in partition.fetch_waiters.all():
            watcher.on_readable(partition, 5)
    assert waiting.bytes == 10
    watch.fetch_waiters.discard(waiting)
    assert session.look() == [asked]
    watch.watch(asked.key, partition)
    session.dirty.clear()
    for watcher in partition.fetch_waiters.all():
        watcher.on_readable(partition, 5)
    assert session.dirty == session.changed == {asked.key: None}
    session.end()
    assert not partition.fetch_waiters
