"""ACLs in the metadata: created, deleted and refused by the controller, folded, and kept in snapshots."""

from __future__ import annotations

import pytest
from cluster_harness import ClusterWorld

from nilometer.cluster.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from nilometer.cluster.acl_table import Verdict
from nilometer.cluster.controller.access import decide_create_acls, decide_delete_acls
from nilometer.cluster.controller.decision import Outcome
from nilometer.cluster.entries import (
    Entry,
    decode_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    sign,
)
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ACLS_FORMAT_VERSION, AclCreated, AclDeleted, Record
from nilometer.identifiers import EntryNumber
from nilometer.invariants import InvariantBroken
from nilometer.wire.errors import ErrorCode

READ_ORDERS = Acl(
    ResourceType.TOPIC,
    "orders",
    PatternType.LITERAL,
    "User:alice",
    "*",
    Operation.READ,
    Permission.ALLOW,
)
WRITE_O = READ_ORDERS._replace(
    resource_name="o", pattern_type=PatternType.PREFIXED, operation=Operation.WRITE
)


@pytest.fixture
def world() -> ClusterWorld:
    return ClusterWorld().with_brokers(1)


def create(world: ClusterWorld, *acls: Acl) -> tuple[Outcome, ...]:
    return world.enact(decide_create_acls(world.image, acls, chance=world.chance))


def may_read(image: ClusterImage) -> bool:
    asked = ("User:alice", "10.0.0.1", Operation.READ, ResourceType.TOPIC, "orders")
    return image.acls.index.verdict(*asked) is Verdict.ALLOWED


def test_acls_are_created_once_and_deleted_by_filters(world: ClusterWorld) -> None:
    assert all(outcome.ok for outcome in create(world, READ_ORDERS, READ_ORDERS, WRITE_O))
    assert may_read(world.image) and len(world.image.acls) == 2
    assert not decide_create_acls(world.image, [WRITE_O], chance=world.chance).units
    everything = AclFilter(resource_type=ResourceType.TOPIC)
    reading = AclFilter(operation=Operation.READ)
    decision = decide_delete_acls(world.image, [reading, everything, AclFilter(principal="User:bob")])
    results = world.enact(decision)
    assert [acls for _, acls in results] == [(READ_ORDERS,), (WRITE_O, READ_ORDERS), ()]
    assert not may_read(world.image) and len(world.image.acls) == 0
    assert world.refold() == world.image


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"resource_type": ResourceType.ANY}, "Invalid resourceType ANY"),
        ({"pattern_type": PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"operation": Operation.ANY}, "Invalid operation ANY"),
        ({"permission": Permission.UNKNOWN}, "Invalid permissionType UNKNOWN"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_type": ResourceType.CLUSTER}, "The only valid name for the CLUSTER resource"),
        ({"principal": "alice"}, "Could not parse principal from `alice`"),
    ],
)
def test_an_invalid_acl_is_refused_alone(world: ClusterWorld, change: dict[str, object], why: str) -> None:
    refused, created = create(world, READ_ORDERS._replace(**change), WRITE_O)  # type: ignore[arg-type]
    assert refused.error is ErrorCode.invalid_request and why in (refused.message or "")
    assert created.ok and [acl for _, acl in world.image.acls.items()] == [WRITE_O]


def test_an_unknown_filter_deletes_nothing(world: ClusterWorld) -> None:
    create(world, READ_ORDERS)
    for wanted in (AclFilter(operation=Operation.UNKNOWN), AclFilter(ResourceType.UNKNOWN)):
        [(outcome, deleted)] = world.enact(decide_delete_acls(world.image, [wanted]))
        assert outcome.error is ErrorCode.invalid_request and not deleted
    assert may_read(world.image)


def test_a_snapshot_has_the_acls_in_a_format_of_their_own(world: ClusterWorld) -> None:
    """A broker that does not know ACLs must not go on without them."""
    before = world.image.snapshot().version
    assert before < ACLS_FORMAT_VERSION
    create(world, READ_ORDERS, WRITE_O)
    assert decode_entry(world.log[-1]).version == ACLS_FORMAT_VERSION
    snapshot = world.image.snapshot()
    assert snapshot.version == ACLS_FORMAT_VERSION
    restored = ClusterImage.from_snapshot(decode_snapshot(encode_snapshot(snapshot)))
    assert restored == world.image and may_read(restored)
    world.enact(decide_delete_acls(world.image, [AclFilter()]))
    assert world.image.snapshot().version == before


def signed(world: ClusterWorld, *records: Record) -> Entry:
    return decode_entry(encode_entry(sign(records, world.image.controllership)))


def test_an_entry_that_cannot_be_folded_changes_no_acl(world: ClusterWorld) -> None:
    create(world, READ_ORDERS)
    [(acl_id, _)] = world.image.acls.items()
    snapshot, number = world.image.snapshot(), EntryNumber(len(world.log))
    again = AclCreated(
        id="other",
        resource_type="GROUP",
        resource_name="g",
        pattern_type="LITERAL",
        principal="User:a",
        host="*",
        operation="READ",
        permission="DENY",
    )
    unknown = AclCreated(
        **{**{name: getattr(again, name) for name in again.__struct_fields__}, "operation": "FLY"}
    )
    for wrong in (AclDeleted(id="none"), unknown):
        with pytest.raises(InvariantBroken):
            world.image.apply_entry(number, signed(world, again, AclDeleted(id=acl_id), wrong))
        assert world.image.snapshot() == snapshot and may_read(world.image)
    world.image.check_entry(number, signed(world, AclDeleted(id=acl_id)))
    assert may_read(world.image), "a check changes nothing"
