"""The admin client for quotas of clients (KIP-546); ``nilometer quota`` uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nilometer.client.admin.requests import AdminRequests, raise_error
from nilometer.cluster.client_quotas import MATCH_DEFAULT, MATCH_EXACT
from nilometer.quotas import QuotaEntity, entity_of
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import Api, Message


class EntityQuotas(NamedTuple):
    entity: QuotaEntity
    values: Mapping[str, float]


class QuotaAdmin(AdminRequests):
    async def list_quotas(self, entity: QuotaEntity = (), *, exactly: bool = False) -> list[EntityQuotas]:
        """Return the quotas of all entities that have the names of ``entity``; ``exactly``: and no others.

        Raises KafkaError.
        """

        def make(api: Api) -> Message:
            components = tuple(
                api.make_request(
                    "ComponentData",
                    entity_type=kind,
                    match_type=MATCH_DEFAULT if name is None else MATCH_EXACT,
                    match=name,
                )
                for kind, name in entity
            )
            return api.request(components=components, strict=exactly)

        response = await self._any(ApiKey.DESCRIBE_CLIENT_QUOTAS, make)
        raise_error(response.error_code, response.error_message)
        return [
            EntityQuotas(
                entity_of({each.entity_type: each.entity_name for each in entry.entity}),
                {each.key: each.value for each in entry.values},
            )
            for entry in response.entries or ()
        ]

    async def alter(self, entity: QuotaEntity, changes: Mapping[str, float | None]) -> None:
        """Set quotas of one entity by key; None removes one. Raises KafkaError."""

        def make(api: Api) -> Message:
            entry = api.make_request(
                "EntryData",
                entity=tuple(
                    api.make_request("EntityData", entity_type=kind, entity_name=name)
                    for kind, name in entity
                ),
                ops=tuple(
                    api.make_request("OpData", key=key, value=value or 0.0, remove=value is None)
                    for key, value in changes.items()
                ),
            )
            return api.request(entries=(entry,), validate_only=False)

        for entry in (await self._any(ApiKey.ALTER_CLIENT_QUOTAS, make)).entries:
            raise_error(entry.error_code, entry.error_message)
