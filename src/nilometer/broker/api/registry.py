"""All APIs that are served."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from nilometer.broker.api import (
    acls,
    add_offsets_to_txn,
    add_partitions_to_txn,
    allocate_producer_ids,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    api_versions,
    broker_heartbeat,
    client_telemetry,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delegation_tokens,
    delete_groups,
    delete_records,
    delete_topics,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_rebalances,
    describe_replicas,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    forfeit_replicas,
    forward_request,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    prove_broker,
    sasl_requests,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from nilometer.broker.api.spec import ApiSpec

_SPECS = (
    acls.CREATE,
    acls.DELETE,
    acls.DESCRIBE,
    add_offsets_to_txn.API,
    add_partitions_to_txn.API,
    allocate_producer_ids.API,
    alter_client_quotas.API,
    alter_configs.API,
    alter_partition.API,
    alter_partition_reassignments.API,
    alter_user_scram_credentials.API,
    api_versions.API,
    broker_heartbeat.API,
    client_telemetry.GET_SUBSCRIPTIONS,
    client_telemetry.PUSH,
    consumer_group_describe.API,
    consumer_group_heartbeat.API,
    create_partitions.API,
    create_topics.API,
    delegation_tokens.CREATE,
    delegation_tokens.DESCRIBE,
    delegation_tokens.EXPIRE,
    delegation_tokens.RENEW,
    delete_groups.API,
    delete_records.API,
    delete_topics.API,
    describe_client_quotas.API,
    describe_cluster.API,
    describe_configs.API,
    describe_groups.API,
    describe_log_dirs.API,
    describe_producers.API,
    describe_quorum.API,
    describe_rebalances.API,
    describe_replicas.API,
    describe_topic_partitions.API,
    describe_transactions.API,
    describe_user_scram_credentials.API,
    elect_leaders.API,
    end_txn.API,
    fetch.API,
    find_coordinator.API,
    forfeit_replicas.API,
    heartbeat.API,
    incremental_alter_configs.API,
    init_producer_id.API,
    join_group.API,
    leave_group.API,
    list_config_resources.API,
    list_groups.API,
    list_offsets.API,
    list_partition_reassignments.API,
    list_transactions.API,
    metadata.API,
    offset_commit.API,
    offset_delete.API,
    offset_fetch.API,
    offset_for_leader_epoch.API,
    produce.API,
    prove_broker.API,
    sasl_requests.AUTHENTICATE,
    sasl_requests.HANDSHAKE,
    sync_group.API,
    txn_offset_commit.API,
    unregister_broker.API,
    update_features.API,
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
