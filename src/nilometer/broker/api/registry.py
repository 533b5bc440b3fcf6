"""All APIs that are served."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from nilometer.broker.api import (
    acls,
    between_brokers,
    classic_groups,
    client_quotas,
    cluster_description,
    configs,
    connections,
    consumer_groups,
    delegation_tokens,
    features,
    fetch,
    find_coordinator,
    forward_request,
    group_administration,
    group_offsets,
    metadata,
    offsets,
    placement,
    produce,
    replicas,
    topics,
    transaction_administration,
    transactions,
    users,
    write_txn_markers,
)
from nilometer.broker.api.spec import ApiSpec

_SPECS = (
    acls.CREATE,
    acls.DELETE,
    acls.DESCRIBE,
    transactions.ADD_OFFSETS,
    transactions.ADD_PARTITIONS,
    between_brokers.ALLOCATE_PRODUCER_IDS,
    client_quotas.ALTER,
    configs.ALTER,
    between_brokers.ALTER_PARTITION,
    placement.ALTER_REASSIGNMENTS,
    users.ALTER,
    connections.API_VERSIONS,
    between_brokers.BROKER_HEARTBEAT,
    connections.GET_SUBSCRIPTIONS,
    connections.PUSH,
    consumer_groups.DESCRIBE,
    consumer_groups.HEARTBEAT,
    topics.CREATE_PARTITIONS,
    topics.CREATE,
    delegation_tokens.CREATE,
    delegation_tokens.DESCRIBE,
    delegation_tokens.EXPIRE,
    delegation_tokens.RENEW,
    group_administration.DELETE,
    offsets.DELETE_RECORDS,
    topics.DELETE,
    client_quotas.DESCRIBE,
    cluster_description.CLUSTER,
    configs.DESCRIBE,
    group_administration.DESCRIBE,
    replicas.DESCRIBE_LOG_DIRS,
    transaction_administration.DESCRIBE_PRODUCERS,
    features.DESCRIBE_QUORUM,
    group_administration.DESCRIBE_REBALANCES,
    replicas.DESCRIBE,
    cluster_description.TOPIC_PARTITIONS,
    transaction_administration.DESCRIBE,
    users.DESCRIBE,
    placement.ELECT_LEADERS,
    transactions.END_TXN,
    fetch.API,
    find_coordinator.API,
    between_brokers.FORFEIT_REPLICAS,
    classic_groups.HEARTBEAT,
    configs.INCREMENTAL_ALTER,
    transactions.INIT_PRODUCER_ID,
    classic_groups.JOIN_GROUP,
    classic_groups.LEAVE_GROUP,
    configs.LIST,
    group_administration.LIST,
    offsets.LIST,
    placement.LIST_REASSIGNMENTS,
    transaction_administration.LIST,
    metadata.API,
    group_offsets.OFFSET_COMMIT,
    group_offsets.OFFSET_DELETE,
    group_offsets.OFFSET_FETCH,
    offsets.FOR_LEADER_EPOCH,
    produce.API,
    between_brokers.PROVE_BROKER,
    connections.AUTHENTICATE,
    connections.HANDSHAKE,
    classic_groups.SYNC_GROUP,
    group_offsets.TXN_OFFSET_COMMIT,
    features.UNREGISTER_BROKER,
    features.UPDATE_FEATURES,
    write_txn_markers.API,
)

APIS: Mapping[int, ApiSpec] = {
    int(spec.key): spec
    for spec in sorted((*_SPECS, forward_request.api_over(_SPECS)), key=lambda spec: spec.key)
}


@functools.cache
def ranges(*, for_brokers: bool) -> Mapping[int, tuple[int, int]]:
    """Return, by API key, the lowest and highest version that is advertised.

    ``for_brokers``: to brokers of this cluster, with the APIs between brokers; else to all other clients.
    """
    return {
        key: spec.advertised
        for key, spec in APIS.items()
        if not spec.hidden and (for_brokers or not spec.between_brokers)
    }
