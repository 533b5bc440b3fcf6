"""AlterClientQuotas: setting and removing the quotas of entities (KIP-546).

The checks are those of Kafka's controller. Beyond these, a value must be a finite number, and an address is
one in numbers, because the controller resolves no host names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal
from nilometer.cluster.entries import Unit
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ClientQuotaChanged
from nilometer.quotas import (
    ADDRESS_KEYS,
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    ENTITY_TYPES,
    IP,
    PRODUCER_BYTE_RATE,
    QuotaEntity,
    canonical_address,
)
from nilometer.wire.errors import ErrorCode

_LARGEST = {
    PRODUCER_BYTE_RATE: (2**63 - 1, "a LONG"),
    CONSUMER_BYTE_RATE: (2**63 - 1, "a LONG"),
    CONNECTION_CREATION_RATE: (2**31 - 1, "an INT"),
}
"""The keys whose values are whole numbers, with the largest one and its type."""
_FRACTION_MAX = 1e-6


class QuotaAlteration(msgspec.Struct, frozen=True):
    entity: QuotaEntity
    changes: Sequence[tuple[str, float | None]]
    """Values by key; None removes the quota."""


def decide_alter_client_quotas(
    image: ClusterImage, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> Decision[dict[QuotaEntity, Outcome]]:
    """Decide the alteration of each entity; the reply has their outcomes.

    An entity's changes are all made or none. As in Kafka, of several alterations of one entity the first is
    made, although its outcome is that of a duplicate: INVALID_REQUEST.
    """
    units: list[Unit] = []
    outcomes: dict[QuotaEntity, Outcome] = {}
    for alteration in alterations:
        entity = alteration.entity
        try:
            keys = Counter(key for key, _ in alteration.changes)
            if entity in outcomes or any(count > 1 for count in keys.values()):
                raise _invalid(f"Ignoring duplicate entity {_shown(entity)}")
            unit = _records(image, entity, dict(alteration.changes))
        except Refusal as refusal:
            outcomes[entity] = refusal.outcome
            continue
        outcomes[entity] = OK
        if unit:
            units.append(unit)
    return Decision(() if validate_only else tuple(units), outcomes)


def _records(image: ClusterImage, entity: QuotaEntity, changes: Mapping[str, float | None]) -> Unit:
    """Return the records of the changes that change something. Raises Refusal."""
    keys = _keys_of(entity)
    current = image.client_quotas.of(entity)
    for key, value in changes.items():
        if value is not None:
            _check_value(keys, key, value)
    return tuple(
        ClientQuotaChanged(entity=entity, key=key, value=value)
        for key, value in changes.items()
        if current.get(key) != value
    )


def _keys_of(entity: QuotaEntity) -> tuple[str, ...]:
    """Return the keys that the entity may have. Raises Refusal if there is no such entity."""
    names = dict(entity)
    if not names:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if IP not in names:
        return CLIENT_KEYS
    if len(names) > 1:
        raise _invalid(
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
        )
    address = names[IP]
    if address is not None and canonical_address(address) is None:
        raise _invalid(f"{address} is not a valid IP or resolvable host.")
    return ADDRESS_KEYS


def _check_value(keys: Sequence[str], key: str, value: float) -> None:
    if key not in keys:
        raise _invalid(f"Invalid configuration key {key}")
    if value <= 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    if not math.isfinite(value):
        raise _invalid(f"Quota {key} must be a number")
    if key in _LARGEST:
        largest, kind = _LARGEST[key]
        if value > float(largest):
            raise _invalid(f"Proposed value for {key} is too large for {kind}.")
        if value % 1 > _FRACTION_MAX:
            raise _invalid(f"{key} cannot be a fractional value.")


def _shown(entity: QuotaEntity) -> str:
    names = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{names}}})"


def _invalid(why: str) -> Refusal:
    return Refusal(ErrorCode.invalid_request, why)
