"""The admin client for ACLs; ``nilometer acl`` uses it."""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.client.network.client import Client
from nilometer.client.network.connection import MakeRequest
from nilometer.cluster.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message


class AclAdmin:
    def __init__(self, client: Client, timeout_ms: int) -> None:
        """``timeout_ms``: how long a request is repeated when it fails with a retriable error."""
        self._client = client
        self._timeout_ms = timeout_ms

    async def list_acls(self, wanted: AclFilter) -> list[Acl]:
        """Return the ACLs that ``wanted`` selects, sorted. Raises KafkaError."""
        fields = _fields_of(wanted)
        response = await self._any(ApiKey.DESCRIBE_ACLS, lambda api: api.request(**fields))
        _check(response.error_code, response.error_message)
        return sorted(_acl(resource, acl) for resource in response.resources for acl in resource.acls)

    async def create_acls(self, acls: Sequence[Acl]) -> None:
        """Create ``acls``; those that exist stay as they are. Raises KafkaError for the first that fails."""

        def make(api: Api) -> Message:
            return api.request(creations=tuple(_creation(api, acl) for acl in acls))

        response = await self._any(ApiKey.CREATE_ACLS, make)
        for result in response.results:
            _check(result.error_code, result.error_message)

    async def delete_acls(self, wanted: Sequence[AclFilter]) -> list[Acl]:
        """Delete the ACLs that any of ``wanted`` selects, and return them, sorted. Raises KafkaError."""

        def make(api: Api) -> Message:
            filters = (api.make_request("DeleteAclsFilter", **_fields_of(each)) for each in wanted)
            return api.request(filters=tuple(filters))

        deleted: set[Acl] = set()
        for result in (await self._any(ApiKey.DELETE_ACLS, make)).filter_results:
            _check(result.error_code, result.error_message)
            deleted.update(_acl(acl, acl) for acl in result.matching_acls)
        return sorted(deleted)

    async def _any(self, key: ApiKey, make: MakeRequest) -> Message:
        return await self._client.retry(lambda: self._client.send_to_any(key, make), self._timeout_ms)


def _creation(api: Api, acl: Acl) -> Message:
    return api.make_request(
        "AclCreation",
        resource_type=int(acl.resource_type),
        resource_name=acl.resource_name,
        resource_pattern_type=int(acl.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )


def _fields_of(wanted: AclFilter) -> dict[str, object]:
    return {
        "resource_type_filter": int(wanted.resource_type),
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": int(wanted.pattern_type),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": int(wanted.operation),
        "permission_type": int(wanted.permission),
    }


def _acl(resource: Message, acl: Message) -> Acl:
    return Acl(
        ResourceType(resource.resource_type),
        resource.resource_name,
        PatternType(resource.pattern_type),
        acl.principal,
        acl.host,
        Operation(acl.operation),
        Permission(acl.permission_type),
    )


def _check(error: ErrorCode, message: str | None) -> None:
    if error is not ErrorCode.none:
        raise KafkaError(error, message or "")
