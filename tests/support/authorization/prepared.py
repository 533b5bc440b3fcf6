"""A broker with an authorizer, prepared for probes: the profiles' topics, groups and ACLs."""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.cluster.acl import Acl
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from ..brokers.two_brokers import KEEP_OLD_RECORDS, Side
from ..eventually import eventually
from ..wire.new_topics import new_topic
from ..wire.wire_peer import make
from .group_probes import offset_commit
from .probe import Names
from .profiles import ADMIN_HOST, SENTINEL, Profile, everything

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
AUTHORIZED = {
    "authorizer.class.name": AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    **KEEP_OLD_RECORDS,
}
"""Settings of both brokers: everyone may create the first ACLs, which end that."""
K = ApiKey


class PreparedBroker:
    """Invariant: the ACLs of all profiles have taken effect."""

    def __init__(self, name: str, bootstrap: str, profiles: Sequence[Profile]) -> None:
        self.name, self.bootstrap = name, bootstrap
        self._profiles = profiles
        self.admin = Side(name, bootstrap, ADMIN_HOST)
        create_acls(self.admin, [*everything(ADMIN_HOST), *everything("127.0.0.1")])
        self._wait_for_rights(self.admin)
        self._create_topics()
        self._commit_offsets()
        self._find_coordinator(1, "t")
        eventually(self._has_producer_ids, f"{name} has producer ids")
        create_acls(self.admin, [acl for profile in profiles for acl in profile.acls])
        for profile in profiles:
            with self.client(profile) as client:
                self._wait_for_rights(client)

    def client(self, profile: Profile) -> Client:
        return Client(Side(f"{self.name} to {profile.name}", self.bootstrap, profile.host), self.admin)

    def names(self, profile: Profile) -> Names:
        return Names(profile.prefix, self.admin.topic_ids)

    def _wait_for_rights(self, side: Side | Client) -> None:
        def allowed() -> bool:
            answer = side.message(K.FIND_COORDINATOR, 3, key_type=0, key=SENTINEL)
            return answer.error_code is ErrorCode.none

        eventually(allowed, f"the ACLs take effect: {side}")

    def _create_topics(self) -> None:
        names = [
            f"{profile.prefix}{name}"
            for profile in self._profiles
            for name in ("known", "known-deletable-name", "known-deletable-id")
        ]
        topics = tuple(new_topic(name) for name in names)
        created = self.admin.message(K.CREATE_TOPICS, 7, topics=topics, timeout_ms=60_000).topics
        assert all(each.error_code is ErrorCode.none for each in created), created
        for name in names:
            self.admin.wait_leaders(name, 1)

    def _find_coordinator(self, kind: int, key: str) -> None:
        def found() -> bool:
            answer = self.admin.message(K.FIND_COORDINATOR, 3, key_type=kind, key=key)
            return answer.error_code is ErrorCode.none

        eventually(found, f"{self.name} coordinates")

    def _has_producer_ids(self) -> bool:
        fields = {"transactional_id": None, "transaction_timeout_ms": 1000}
        return self.admin.message(K.INIT_PRODUCER_ID, 1, **fields).error_code is ErrorCode.none

    def _commit_offsets(self) -> None:
        self._find_coordinator(0, "g")
        for profile in self._profiles:
            names = self.names(profile)
            for group in (names.known, f"{names.known}-deletable", f"{names.known}-emptied"):
                eventually(
                    lambda names=names, group=group: self._commit(names, group),
                    f"{self.name} takes offsets of {group}",
                )

    def _commit(self, names: Names, group: str) -> bool:
        topics = self.admin.message(K.OFFSET_COMMIT, 8, **offset_commit(names, 8, group)).topics
        codes = {topic.name: topic.partitions[0].error_code for topic in topics}
        return codes[names.known] is ErrorCode.none


class Client:
    """The connection of a profile's client, closed at the end of the `with` block."""

    def __init__(self, side: Side, admin: Side) -> None:
        self._side = side
        side.topic_ids = admin.topic_ids
        self.ask, self.message = side.ask, side.message

    def __repr__(self) -> str:
        return repr(self._side)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._side.hang_up()


def create_acls(side: Side, acls: Sequence[Acl]) -> None:
    creations = tuple(
        make(
            K.CREATE_ACLS,
            3,
            "AclCreation",
            resource_type=int(acl.resource_type),
            resource_name=acl.resource_name,
            resource_pattern_type=int(acl.pattern_type),
            principal=acl.principal,
            host=acl.host,
            operation=int(acl.operation),
            permission_type=int(acl.permission),
        )
        for acl in acls
    )
    results = side.message(K.CREATE_ACLS, 3, creations=creations).results
    assert all(each.error_code is ErrorCode.none for each in results), results


def delete_acl(admin: Side, acl: Acl) -> None:
    wanted = make(
        K.DELETE_ACLS,
        3,
        "DeleteAclsFilter",
        resource_type_filter=int(acl.resource_type),
        resource_name_filter=acl.resource_name,
        pattern_type_filter=int(acl.pattern_type),
        principal_filter=acl.principal,
        host_filter=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )
    [result] = admin.message(K.DELETE_ACLS, 3, filters=(wanted,)).filter_results
    assert len(result.matching_acls) == 1, result
