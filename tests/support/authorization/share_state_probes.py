"""Probes of the APIs of share partitions' states, all about topics that do not exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

from nilometer.wire.api_keys import ApiKey

from ..wire.wire_peer import make
from .probe import Names, Probe

K = ApiKey
NO_SUCH_TOPIC = UUID(int=1 << 64 | 99)
_WRITE = {"state_epoch": 1, "leader_epoch": 1, "start_offset": 0, "state_batches": ()}
_APIS: tuple[tuple[ApiKey, int, str, Mapping[str, object]], ...] = (
    (K.INITIALIZE_SHARE_GROUP_STATE, 0, "InitializeStateData", {"state_epoch": -1, "start_offset": 0}),
    (K.READ_SHARE_GROUP_STATE, 0, "ReadStateData", {"leader_epoch": -1}),
    (K.WRITE_SHARE_GROUP_STATE, 0, "WriteStateData", _WRITE | {"state_epoch": -1}),
    (K.WRITE_SHARE_GROUP_STATE, 1, "WriteStateData", _WRITE | {"leader_epoch": -1}),
    (K.DELETE_SHARE_GROUP_STATE, 0, "DeleteStateData", {}),
    (K.READ_SHARE_GROUP_STATE_SUMMARY, 0, "ReadStateSummaryData", {"leader_epoch": 1}),
    (K.READ_SHARE_GROUP_STATE_SUMMARY, 1, "ReadStateSummaryData", {"leader_epoch": 1}),
)


def share_state_probes() -> Iterator[Probe]:
    for key, version, kind, more in _APIS:

        def fields(
            of: Names,
            key: ApiKey = key,
            version: int = version,
            kind: str = kind,
            more: Mapping[str, object] = more,
        ) -> Mapping[str, object]:
            part = make(key, version, "PartitionData", partition=-1, **more)
            topic = make(key, version, kind, topic_id=NO_SUCH_TOPIC, partitions=(part,))
            return {"group_id": of.known, "topics": (topic,)}

        yield Probe(key, version, "of an invalid partition", fields)
