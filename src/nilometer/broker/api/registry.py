"""All APIs that are served: those that the modules of subjects declare."""

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
    raft_voters,
    replicas,
    share_fetch,
    share_groups,
    share_offsets,
    share_state,
    streams_groups,
    topics,
    transaction_administration,
    transactions,
    users,
    write_txn_markers,
)
from nilometer.broker.api.spec import ApiSpec

_SUBJECTS = (
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
    group_administration,
    group_offsets,
    metadata,
    offsets,
    placement,
    produce,
    raft_voters,
    replicas,
    share_groups,
    share_offsets,
    share_state,
    streams_groups,
    topics,
    transaction_administration,
    transactions,
    users,
    share_fetch,
    write_txn_markers,
)
_SPECS = tuple(spec for subject in _SUBJECTS for spec in vars(subject).values() if isinstance(spec, ApiSpec))

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
