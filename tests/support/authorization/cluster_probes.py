"""Probes of the APIs of settings, brokers, users and ACLs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from nilometer.cluster.acl import CLUSTER_NAME
from nilometer.wire.api_keys import ApiKey

from ..wire.wire_peer import make
from .probe import Names, Probe, is_denied, of_profile, only_error, without_loggers

K = ApiKey


def settings_probes() -> Iterator[Probe]:
    def resources(of: Names, version: int) -> Mapping[str, object]:
        key, keys = K.DESCRIBE_CONFIGS, ("retention.ms", "consumer.session.timeout.ms", "node.id")
        places = [(2, of.known), (2, of.missing), (4, "1"), (8, "1"), (32, f"{of.known}-group")]
        asked = tuple(
            make(
                key,
                version,
                "DescribeConfigsResource",
                resource_type=kind,
                resource_name=name,
                configuration_keys=keys,
            )
            for kind, name in places
        )
        return {"resources": asked}

    yield Probe(K.DESCRIBE_CONFIGS, 4, "of each type", lambda of: resources(of, 4), without_loggers)

    def altered(
        of: Names, key: ApiKey, version: int, places: list[tuple[int, str, str]]
    ) -> Mapping[str, object]:
        asked: list[Any] = []
        for kind, name, setting in places:
            more = {"config_operation": 0} if key is K.INCREMENTAL_ALTER_CONFIGS else {}
            config = make(key, version, "AlterableConfig", name=setting, value="50000", **more)
            asked.append(
                make(
                    key,
                    version,
                    "AlterConfigsResource",
                    resource_type=kind,
                    resource_name=name,
                    configs=(config,),
                )
            )
        return {"resources": tuple(asked), "validate_only": True}

    def of_each(of: Names) -> list[tuple[int, str, str]]:
        group = (32, f"{of.known}-group", "consumer.session.timeout.ms")
        return [(2, of.known, "retention.ms"), (2, of.missing, "retention.ms"), group]

    yield Probe(K.ALTER_CONFIGS, 2, "validated", lambda of: altered(of, K.ALTER_CONFIGS, 2, of_each(of)))
    yield Probe(
        K.INCREMENTAL_ALTER_CONFIGS,
        1,
        "validated",
        lambda of: altered(of, K.INCREMENTAL_ALTER_CONFIGS, 1, of_each(of)),
    )
    broker = [(4, "", "log.cleaner.backoff.ms")]
    yield Probe(
        K.INCREMENTAL_ALTER_CONFIGS,
        1,
        "of brokers",
        lambda of: altered(of, K.INCREMENTAL_ALTER_CONFIGS, 1, broker),
        is_denied,
    )
    yield from malformed_probes()
    yield Probe(K.LIST_CONFIG_RESOURCES, 1, "of topics", lambda _: {"resource_types": (2,)}, of_profile)


def malformed_probes() -> Iterator[Probe]:
    """What is wrong with a change is said before what may not be changed."""

    def fields(of: Names, key: ApiKey, version: int) -> Mapping[str, object]:
        def resource(kind: int, name: str, *settings: tuple[str, str | None]) -> object:
            more = {"config_operation": 0} if key is K.INCREMENTAL_ALTER_CONFIGS else {}
            configs = tuple(
                make(key, version, "AlterableConfig", name=setting, value=value, **more)
                for setting, value in settings
            )
            return make(
                key, version, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs
            )

        backoff, retention = ("log.cleaner.backoff.ms", "1"), ("retention.ms", "1")
        asked = (
            *(resource(4, name, backoff) for name in ("nowhere", "7", "-1")),
            resource(4, "1", backoff, backoff),
            resource(4, "", ("log.cleaner.backoff.ms", None)),
            resource(2, of.known, retention, retention),
            resource(2, of.missing, ("retention.ms", None)),
            resource(2, "a b", retention),
            resource(77, "nothing", retention),
        )
        return {"resources": asked, "validate_only": True}

    yield Probe(K.ALTER_CONFIGS, 2, "malformed", lambda of: fields(of, K.ALTER_CONFIGS, 2))
    yield Probe(
        K.INCREMENTAL_ALTER_CONFIGS, 1, "malformed", lambda of: fields(of, K.INCREMENTAL_ALTER_CONFIGS, 1)
    )


def cluster_probes() -> Iterator[Probe]:
    bits = {
        "include_cluster_authorized_operations": True,
        "endpoint_type": 1,
        "include_fenced_brokers": False,
    }
    yield Probe(K.DESCRIBE_CLUSTER, 2, "with operations", lambda _: bits)
    yield Probe(K.DESCRIBE_LOG_DIRS, 4, "of nothing", lambda _: {"topics": ()}, only_error)
    moved = make(K.ALTER_REPLICA_LOG_DIRS, 2, "AlterReplicaLogDirTopic", name="nowhere", partitions=(0, 1))
    nowhere = make(K.ALTER_REPLICA_LOG_DIRS, 2, "AlterReplicaLogDir", path="/nowhere", topics=(moved,))
    yield Probe(K.ALTER_REPLICA_LOG_DIRS, 2, "to nowhere", lambda _: {"dirs": (nowhere,)})
    quorum = make(
        K.DESCRIBE_QUORUM,
        2,
        "TopicData",
        topic_name="__cluster_metadata",
        partitions=(make(K.DESCRIBE_QUORUM, 2, "PartitionData", partition_index=0),),
    )
    yield Probe(K.DESCRIBE_QUORUM, 2, "of the metadata", lambda _: {"topics": (quorum,)}, only_error)
    voter = {"cluster_id": None, "voter_id": 77, "voter_directory_id": UUID(int=77)}
    listener = make(K.ADD_RAFT_VOTER, 1, "Listener", name="CONTROLLER", host="localhost", port=1)
    added = {"timeout": timedelta(), "listeners": (listener,), "ack_when_committed": True}
    yield Probe(K.ADD_RAFT_VOTER, 1, "of fixed voters", lambda _: voter | added, only_error)
    yield Probe(K.REMOVE_RAFT_VOTER, 0, "of fixed voters", lambda _: voter, only_error)
    yield Probe(K.UNREGISTER_BROKER, 0, "unknown", lambda _: {"broker_id": 77})
    update = make(
        K.UPDATE_FEATURES, 1, "FeatureUpdateKey", feature="none", max_version_level=1, upgrade_type=1
    )
    yield Probe(
        K.UPDATE_FEATURES,
        1,
        "unknown",
        lambda _: {"timeout_ms": 10_000, "feature_updates": (update,), "validate_only": True},
        only_error,
    )
    yield Probe(K.DESCRIBE_CLIENT_QUOTAS, 1, "all", lambda _: {"components": (), "strict": False})
    alice = make(K.ALTER_CLIENT_QUOTAS, 1, "EntityData", entity_type="user", entity_name="alice")
    none = make(K.ALTER_CLIENT_QUOTAS, 1, "OpData", key="producer_byte_rate", value=0.0, remove=True)
    entry = make(K.ALTER_CLIENT_QUOTAS, 1, "EntryData", entity=(alice,), ops=(none,))
    yield Probe(K.ALTER_CLIENT_QUOTAS, 1, "unknown", lambda _: {"entries": (entry,), "validate_only": False})
    user = make(K.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, "UserName", name="alice")
    yield Probe(K.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, "unknown", lambda _: {"users": (user,)})
    gone = make(K.ALTER_USER_SCRAM_CREDENTIALS, 0, "ScramCredentialDeletion", name="alice", mechanism=1)
    yield Probe(
        K.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        "unknown",
        lambda _: {"deletions": (gone,), "upsertions": ()},
    )

    def wanted(principal: str) -> dict[str, object]:
        return {
            "resource_type_filter": 2,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": principal,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }

    def created(of: Names) -> Mapping[str, object]:
        places = [(2, of.known), (4, CLUSTER_NAME), (4, "other"), (2, "")]
        acls = tuple(
            make(
                K.CREATE_ACLS,
                3,
                "AclCreation",
                resource_type=kind,
                resource_name=name,
                resource_pattern_type=3,
                principal=f"User:{of.prefix}",
                host="*",
                operation=3,
                permission_type=3,
            )
            for kind, name in places
        )
        return {"creations": acls}

    yield Probe(K.CREATE_ACLS, 3, "of another user", created)
    yield Probe(K.DESCRIBE_ACLS, 3, "of no user", lambda _: wanted("User:none"))

    def removed(of: Names) -> Mapping[str, object]:
        filters = tuple(
            make(K.DELETE_ACLS, 3, "DeleteAclsFilter", **wanted(user)) for user in (of.prefix, "none")
        )
        return {"filters": filters}

    yield Probe(K.DELETE_ACLS, 3, "of no user", removed)


def token_probes() -> Iterator[Probe]:
    """Without authentication there are none; test_delegation_tokens_as_kafka.py has those of users."""
    yield Probe(K.CREATE_DELEGATION_TOKEN, 3, "own", lambda _: {"renewers": (), "max_lifetime_ms": -1})
    yield Probe(K.RENEW_DELEGATION_TOKEN, 2, "unknown", lambda _: {"hmac": b"", "renew_period_ms": -1})
    yield Probe(K.EXPIRE_DELEGATION_TOKEN, 2, "unknown", lambda _: {"hmac": b"", "expiry_time_period_ms": -1})
    yield Probe(K.DESCRIBE_DELEGATION_TOKEN, 3, "all", lambda _: {"owners": None})
