"""The settings of remote storage that change while a broker runs, and take effect at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from nilometer.broker.replicas.remote_reading import RemoteReads
from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION, BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.broker.tiering.remote_logs import RemoteLogs
from nilometer.cluster.entries import Controllership, Entry
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigChanged, ConfigResourceType, ControllerElected, TopicCreated
from nilometer.identifiers import BrokerId, ControllerEpoch, EntryNumber, Incarnation, topic_id_of
from support.logs.memory_disk import MemoryDisk

FILE = {
    "node.id": "1",
    "remote.log.storage.system.enable": "true",
    "nilometer.tier.uri": "file:///tier",
    "remote.fetch.max.wait.ms": "70",
}
TERM = Controllership(BrokerId(1), Incarnation("a"), ControllerEpoch(1))


class Broker:
    def __init__(self) -> None:
        config = BrokerConfig(FILE).tier
        assert config is not None
        self.reads = RemoteReads(config, Tasks())
        self.image = ClusterImage()
        self._subscribers: list[Any] = []
        replicas = SimpleNamespace(remote=self.reads, add_hosting_listener=lambda _listener: None)
        metadata = SimpleNamespace(subscribe=lambda *both: self._subscribers.append(both), image=self.image)
        runtime = SimpleNamespace(
            clock=SimpleNamespace(monotonic_ms=lambda: 0),
            entropy=SimpleNamespace(bytes=bytes),
            disk=MemoryDisk(),
        )
        turns = SimpleNamespace(wait_next=None)
        parts: tuple[Any, ...] = (config, runtime, None, replicas, metadata, None, "c", BrokerId(1), turns)
        self.logs = RemoteLogs(*parts)
        self.fold(ControllerElected(controller_id=TERM.controller_id, incarnation=TERM.incarnation,
                                     controller_epoch=TERM.controller_epoch))  # fmt: skip

    def fold(self, *records: Any) -> None:
        entry = Entry(
            controller_id=TERM.controller_id,
            controller_incarnation=TERM.incarnation,
            controller_epoch=TERM.controller_epoch,
            records=records,
        )
        delta = self.image.apply_entry(EntryNumber(self.image.number + 1), entry)
        for on_delta, _ in self._subscribers:
            on_delta(delta, self.image)

    def configure(self, name: str, **values: str | None) -> None:
        self.fold(
            *(
                ConfigChanged(
                    resource_type=ConfigResourceType.BROKER,
                    resource_name=name,
                    key=key.replace("_", "."),
                    value=value,
                )
                for key, value in values.items()
            )
        )

    def reload(self) -> None:
        for _, on_reload in self._subscribers:
            on_reload(self.image)


def test_settings_take_effect_and_the_file_counts_again_when_they_are_removed() -> None:
    broker = Broker()
    logs: Any = broker.logs
    assert broker.reads.fetch_wait_ms == 70
    broker.configure(
        "",
        remote_fetch_max_wait_ms="80",
        remote_list_offsets_request_timeout_ms="90",
        remote_log_manager_copy_max_bytes_per_second="1000",
        remote_log_manager_fetch_max_bytes_per_second="2000",
        remote_log_manager_copier_thread_pool_size="3",
        remote_log_index_file_cache_total_size_bytes="4000",
    )
    assert (broker.reads.fetch_wait_ms, broker.reads.search_wait_ms) == (80, 90)
    assert (logs._copies.bytes_per_second, logs._fetches.bytes_per_second) == (1000, 2000)
    assert (logs._config.copies_at_once, logs._cache.indexes.bytes_max) == (3, 4000)
    broker.configure("2", remote_fetch_max_wait_ms="81")
    assert broker.reads.fetch_wait_ms == 80, "that is another broker"
    broker.configure("1", remote_fetch_max_wait_ms="82")
    assert broker.reads.fetch_wait_ms == 82
    broker.configure("1", remote_fetch_max_wait_ms=None)
    broker.configure("", remote_fetch_max_wait_ms=None)
    assert broker.reads.fetch_wait_ms == 70
    broker.reads.fetch_wait_ms = 0
    broker.reload()
    assert broker.reads.fetch_wait_ms == 70


def test_only_those_that_take_effect_can_change_while_a_broker_runs() -> None:
    keys = BROKER_CONFIG_DEFINITION.keys
    dynamic = {key for key in keys if key.startswith(("remote.", "nilometer.tier")) and keys[key].dynamic}
    assert dynamic == {
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.fetch.max.bytes.per.second",
    }


def test_the_partitions_of_a_broker_know_when_their_topics_were_tiered_again() -> None:
    broker, topic_id = Broker(), topic_id_of(UUID(int=7))
    logs: Any = broker.logs
    broker.fold(TopicCreated(name="events", topic_id=topic_id))
    assert logs._parts.tiered_since(topic_id) == -1
    broker.fold(
        ConfigChanged(
            resource_type=ConfigResourceType.TOPIC,
            resource_name="events",
            key="remote.storage.enable",
            value="true",
        )
    )
    assert logs._parts.tiered_since(topic_id) == broker.image.number == 2
