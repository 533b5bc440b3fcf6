"""Probes: for each API requests about resources that exist and that do not, by name and by id.

No probe changes what another one sees: what it may change it only validates, or it is of its profile alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.wire.api_keys import AnyApiKey, ApiKey, NilometerApiKey

from .cluster_probes import cluster_probes, settings_probes, token_probes
from .group_probes import group_probes, offset_probes
from .probe import Probe
from .record_probes import record_probes
from .share_state_probes import share_state_probes
from .topic_probes import topic_probes
from .transaction_probes import transaction_probes

K = ApiKey

NOT_PROBED: Mapping[AnyApiKey, str] = {
    K.API_VERSIONS: "every client may send it",
    K.SHARE_FETCH: "it needs a share session; a test of its own",
    K.SHARE_ACKNOWLEDGE: "it needs a share session; a test of its own",
    K.DESCRIBE_SHARE_GROUP_OFFSETS: "it needs the state of share partitions; a test of its own",
    K.ALTER_SHARE_GROUP_OFFSETS: "it needs the state of share partitions; a test of its own",
    K.DELETE_SHARE_GROUP_OFFSETS: "it needs the state of share partitions; a test of its own",
    K.GET_TELEMETRY_SUBSCRIPTIONS: "every client may send it, and no metrics are collected",
    K.PUSH_TELEMETRY: "every client may send it, and no metrics are collected",
    K.SASL_HANDSHAKE: "it begins the authentication",
    K.SASL_AUTHENTICATE: "it is the authentication",
    K.ALLOCATE_PRODUCER_IDS: "served to brokers that have proved to be brokers",
    K.ALTER_PARTITION: "served to brokers that have proved to be brokers",
    K.BROKER_HEARTBEAT: "served to brokers that have proved to be brokers",
    NilometerApiKey.FORFEIT_REPLICAS: "served to brokers that have proved to be brokers",
    NilometerApiKey.FORWARD_REQUEST: "served to brokers that have proved to be brokers",
    NilometerApiKey.PROVE_BROKER: "it is the proof",
    NilometerApiKey.DESCRIBE_REPLICAS: "Kafka does not have it; a test of its own",
    NilometerApiKey.DESCRIBE_REBALANCES: "Kafka does not have it; a test of its own",
    NilometerApiKey.DESCRIBE_SHARE_PARTITIONS: "Kafka does not have it; a test of its own",
}
"""The APIs without a probe, and why."""


def probes() -> list[Probe]:
    return [
        *topic_probes(),
        *record_probes(),
        *offset_probes(),
        *group_probes(),
        *transaction_probes(),
        *share_state_probes(),
        *settings_probes(),
        *cluster_probes(),
        *token_probes(),
    ]
