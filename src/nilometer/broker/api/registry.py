"""All APIs that are served."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from nilometer.broker.api import (
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from nilometer.broker.api.spec import ApiSpec

APIS: Mapping[int, ApiSpec] = {
    int(spec.key): spec
    for spec in sorted(
        (
            api_versions.API,
            create_partitions.API,
            create_topics.API,
            delete_records.API,
            delete_topics.API,
            describe_cluster.API,
            describe_configs.API,
            describe_log_dirs.API,
            describe_topic_partitions.API,
            fetch.API,
            find_coordinator.API,
            incremental_alter_configs.API,
            init_producer_id.API,
            list_offsets.API,
            metadata.API,
            offset_for_leader_epoch.API,
            produce.API,
        ),
        key=lambda spec: spec.key,
    )
}


@functools.cache
def ranges() -> Mapping[int, tuple[int, int]]:
    """API key to the lowest and highest version advertised."""
    return {key: spec.advertised for key, spec in APIS.items()}
