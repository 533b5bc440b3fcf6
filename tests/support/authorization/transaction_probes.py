"""Probes of the APIs of transactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nilometer.wire.api_keys import ApiKey

from ..wire.wire_peer import make
from .probe import Names, Probe, of_profile

K = ApiKey


def transaction_probes() -> Iterator[Probe]:
    producer = {"producer_id": 4_000_000, "producer_epoch": 0}
    yield Probe(
        K.INIT_PRODUCER_ID,
        5,
        "idempotent",
        lambda _: {
            "transactional_id": None,
            "transaction_timeout_ms": 1000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        lambda answer: answer["error_code"],
    )
    yield Probe(
        K.INIT_PRODUCER_ID,
        5,
        "transactional",
        lambda of: {
            "transactional_id": of.known,
            "transaction_timeout_ms": 0,
            "producer_id": -1,
            "producer_epoch": -1,
        },
    )

    def added(of: Names) -> Mapping[str, object]:
        key = K.ADD_PARTITIONS_TO_TXN
        topics = tuple(
            make(key, 3, "AddPartitionsToTxnTopic", name=name, partitions=(0,)) for name in of.both
        )
        return {
            "v3_and_below_transactional_id": of.known,
            "v3_and_below_producer_id": 4_000_000,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": topics,
        }

    def verified(of: Names) -> Mapping[str, object]:
        key = K.ADD_PARTITIONS_TO_TXN
        topics = (make(key, 5, "AddPartitionsToTxnTopic", name=of.known, partitions=(0,)),)
        kind = "AddPartitionsToTxnTransaction"
        asked = make(key, 5, kind, transactional_id=of.known, verify_only=True, topics=topics, **producer)
        return {"transactions": (asked,)}

    yield Probe(K.ADD_PARTITIONS_TO_TXN, 3, "of a producer", added)
    yield Probe(K.ADD_PARTITIONS_TO_TXN, 5, "of a broker", verified)
    yield Probe(
        K.ADD_OFFSETS_TO_TXN,
        4,
        "unknown",
        lambda of: {"transactional_id": of.known, "group_id": of.known, **producer},
    )
    yield Probe(
        K.END_TXN, 5, "unknown", lambda of: {"transactional_id": of.known, "committed": True, **producer}
    )

    def committed(of: Names) -> Mapping[str, object]:
        key = K.TXN_OFFSET_COMMIT
        kind = "TxnOffsetCommitRequestPartition"
        part = make(key, 4, kind, partition_index=0, committed_offset=1, committed_metadata="")
        topics = tuple(
            make(key, 4, "TxnOffsetCommitRequestTopic", name=n, partitions=(part,)) for n in of.both
        )
        return {"transactional_id": of.known, "group_id": of.known, "topics": topics, **producer}

    yield Probe(K.TXN_OFFSET_COMMIT, 4, "unknown", committed)

    def marked(of: Names) -> Mapping[str, object]:
        key = K.WRITE_TXN_MARKERS
        topic = make(key, 1, "WritableTxnMarkerTopic", name=of.missing, partition_indexes=(0,))
        marker = make(
            key,
            1,
            "WritableTxnMarker",
            transaction_result=False,
            topics=(topic,),
            coordinator_epoch=0,
            **producer,
        )
        return {"markers": (marker,)}

    yield Probe(K.WRITE_TXN_MARKERS, 1, "missing", marked)
    yield Probe(K.DESCRIBE_TRANSACTIONS, 0, "by name", lambda of: {"transactional_ids": of.both})
    yield Probe(
        K.LIST_TRANSACTIONS,
        1,
        "all",
        lambda _: {"state_filters": (), "producer_id_filters": (), "duration_filter": -1},
        of_profile,
    )
