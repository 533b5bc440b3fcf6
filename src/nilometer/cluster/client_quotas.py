"""The quotas of clients in the metadata, and the filters that select some of them (KIP-546)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from nilometer.cluster.records import ClientQuotaChanged
from nilometer.quotas import CLIENT_ID, ENTITY_TYPES, IP, USER, Limits, QuotaEntity
from nilometer.wire.errors import ErrorCode, KafkaError

_NONE: Mapping[str, float] = {}
MATCH_EXACT, MATCH_DEFAULT, MATCH_SPECIFIED = range(3)
"""Kafka's numbers: an entity with this name, with the default, with any name."""


class ClientQuotas:
    """All quotas by entity. Invariant: it has an entity only while the entity has a quota."""

    __slots__ = ("_by_entity",)

    def __init__(self) -> None:
        self._by_entity: dict[QuotaEntity, dict[str, float]] = {}

    def of(self, entity: QuotaEntity) -> Mapping[str, float]:
        return self._by_entity.get(entity, _NONE)

    def items(self) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
        """Return all entities with their quotas by key, in order."""
        return [(entity, self._by_entity[entity]) for entity in sorted(self._by_entity, key=_order)]

    def limits(self, key: str) -> Limits:
        """Return the quotas of one key, as they count from now on until the next change."""
        limits = Limits()
        for entity, values in self._by_entity.items():
            if key in values:
                limits.put(entity, values[key])
        return limits

    def apply(self, record: ClientQuotaChanged) -> Callable[[], None]:
        """Set or remove a quota; return the function that undoes it."""
        before = self.of(record.entity).get(record.key)
        self._put(record.entity, record.key, record.value)
        return lambda: self._put(record.entity, record.key, before)

    def _put(self, entity: QuotaEntity, key: str, value: float | None) -> None:
        values = self._by_entity.setdefault(entity, {})
        values.pop(key, None)
        if value is not None:
            values[key] = value
        elif not values:
            del self._by_entity[entity]

    def snapshot(self) -> tuple[ClientQuotaChanged, ...]:
        return tuple(
            ClientQuotaChanged(entity=entity, key=key, value=value)
            for entity, values in self.items()
            for key, value in sorted(values.items())
        )

    def restore(self, records: Iterable[ClientQuotaChanged]) -> None:
        for record in records:
            self._put(record.entity, record.key, record.value)


def _order(entity: QuotaEntity) -> tuple[tuple[str, bool, str], ...]:
    return tuple((kind, name is not None, name or "") for kind, name in entity)


class FilterComponent(NamedTuple):
    """A condition of DescribeClientQuotas for one type."""

    type: str
    match: int
    name: str | None


class QuotaFilter:
    """Selects the entities that meet all components; a strict one only those without further types."""

    def __init__(self, components: Sequence[FilterComponent], *, strict: bool) -> None:
        """Raises KafkaError: INVALID_REQUEST, and UNSUPPORTED_VERSION for an unknown type."""
        self._strict = strict
        self._components: dict[str, FilterComponent] = {}
        for component in components:
            _check(component, self._components)
            self._components[component.type] = component
        if IP in self._components and {USER, CLIENT_ID} & self._components.keys():
            raise KafkaError(
                ErrorCode.invalid_request,
                "Invalid entity filter component combination. IP filter component should not be used with "
                "user or clientId filter component.",
            )

    def matches(self, entity: QuotaEntity) -> bool:
        names = dict(entity)
        if self._strict and len(names) != len(self._components):
            return False
        return all(
            each.type in names and (each.match == MATCH_SPECIFIED or names[each.type] == each.name)
            for each in self._components.values()
        )


def _check(component: FilterComponent, earlier: Mapping[str, FilterComponent]) -> None:
    kind, match, name = component
    if not kind:
        raise KafkaError(ErrorCode.invalid_request, "Invalid empty entity type.")
    if kind in earlier:
        why = f"Entity type {kind} cannot appear more than once in the filter."
        raise KafkaError(ErrorCode.invalid_request, why)
    if kind not in ENTITY_TYPES:
        raise KafkaError(ErrorCode.unsupported_version, f"Unsupported entity type {kind}")
    if match not in _MATCHES:
        raise KafkaError(ErrorCode.invalid_request, f"Unknown match type {match}")
    if match == MATCH_EXACT and name is None:
        why = "Request specified MATCH_TYPE_EXACT, but set the match string to null."
        raise KafkaError(ErrorCode.invalid_request, why)
    if match != MATCH_EXACT and name is not None:
        why = f"Request specified {_MATCHES[match]}, but also specified a match string."
        raise KafkaError(ErrorCode.invalid_request, why)


_MATCHES = {
    MATCH_EXACT: "MATCH_TYPE_EXACT",
    MATCH_DEFAULT: "MATCH_TYPE_DEFAULT",
    MATCH_SPECIFIED: "MATCH_TYPE_SPECIFIED",
}
