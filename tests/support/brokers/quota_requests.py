"""Quotas of clients by the protocol: they are set, and responses say how long to wait."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from ..wire.wire_peer import WirePeer, make


def alter(bootstrap: str, entity: Mapping[str, str | None], **values: float | None) -> None:
    key, version = ApiKey.ALTER_CLIENT_QUOTAS, 1
    entry = make(
        key,
        version,
        "EntryData",
        entity=tuple(
            make(key, version, "EntityData", entity_type=kind, entity_name=name)
            for kind, name in entity.items()
        ),
        ops=tuple(
            make(key, version, "OpData", key=name, value=value or 0.0, remove=value is None)
            for name, value in values.items()
        ),
    )
    with WirePeer(bootstrap, "admin") as peer:
        (outcome,) = peer.ask(key, version, entries=(entry,), validate_only=False).entries
        assert outcome.error_code == ErrorCode.none, outcome


def throttle_ms(response: Any) -> int:
    return response.throttle_time // timedelta(milliseconds=1)
