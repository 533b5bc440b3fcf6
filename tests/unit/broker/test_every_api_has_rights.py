"""No API is forgotten: each says which rights it needs, and only these need none."""

from __future__ import annotations

from nilometer.cluster.acl import SUPPORTED_OPERATIONS, Operation, ResourceType
from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from support.brokers.served_apis import APIS

FREE = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
    NilometerApiKey.PROVE_BROKER,
    ApiKey.RENEW_DELEGATION_TOKEN,  # by the token's owner and renewers, whatever ACLs say
    ApiKey.EXPIRE_DELEGATION_TOKEN,
}
BY_ALL = (Operation.DELETE, ResourceType.CLUSTER)
"""Kafka asks for it, but only an ACL of all operations can give it."""


def test_every_api_declares_its_rights() -> None:
    assert [spec.key.name for spec in APIS.values() if spec.rights is None] == []
    assert {spec.key for spec in APIS.values() if not spec.rights} == FREE


def test_rights_exist_on_their_type_of_resource() -> None:
    for spec in APIS.values():
        for operation, kind in spec.rights or ():
            assert operation in SUPPORTED_OPERATIONS[kind] or (operation, kind) == BY_ALL, spec.key.name
