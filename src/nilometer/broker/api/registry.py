"""All APIs that are served."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from nilometer.broker.api import (
    allocate_producer_ids,
    alter_partition,
    alter_partition_reassignments,
    api_versions,
    broker_heartbeat,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_rebalances,
    describe_replicas,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    forfeit_replicas,
    forward_request,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    prove_broker,
    sync_group,
    unregister_broker,
)
from nilometer.broker.api.spec import ApiSpec

_SPECS = (
    allocate_producer_ids.API,
    alter_partition.API,
    alter_partition_reassignments.API,
    api_versions.API,
    broker_heartbeat.API,
    consumer_group_describe.API,
    consumer_group_heartbeat.API,
    create_partitions.API,
    create_topics.API,
    delete_groups.API,
    delete_records.API,
    delete_topics.API,
    describe_cluster.API,
    describe_configs.API,
    describe_groups.API,
    describe_log_dirs.API,
    describe_rebalances.API,
    describe_replicas.API,
    describe_topic_partitions.API,
    elect_leaders.API,
    fetch.API,
    find_coordinator.API,
    forfeit_replicas.API,
    heartbeat.API,
    incremental_alter_configs.API,
    init_producer_id.API,
    join_group.API,
    leave_group.API,
    list_groups.API,
    list_offsets.API,
    list_partition_reassignments.API,
    metadata.API,
    offset_commit.API,
    offset_delete.API,
    offset_fetch.API,
    offset_for_leader_epoch.API,
    produce.API,
    prove_broker.API,
    sync_group.API,
    unregister_broker.API,
)

APIS: Mapping[int, ApiSpec] = {
    int(spec.key): spec
    for spec in sorted((*_SPECS, forward_request.api_over(_SPECS)), key=lambda spec: spec.key)
}


@functools.cache
def ranges(*, for_brokers: bool) -> Mapping[int, tuple[int, int]]:
    """API key to the lowest and highest version advertised: to brokers of this cluster, or to all others."""
    return {key: spec.advertised for key, spec in APIS.items() if for_brokers or not spec.between_brokers}
