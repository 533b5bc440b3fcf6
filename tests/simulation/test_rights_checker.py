"""The checker of rights: its own rules for ACLs, and by which entries of the metadata log it judges."""

from __future__ import annotations

import json
import random

import pytest

from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.cluster.acl_table import AclIndex, Verdict
from nilometer.runtime.runtime import SeededEntropy
from nilometer.simulation.workload.rights import (
    TOPICS,
    USERS,
    AclHistory,
    AclRecord,
    Judged,
    RightsLedger,
    allows,
    random_acl,
)

OPERATIONS = ("READ", "WRITE", "DESCRIBE", "CREATE", "ALTER_CONFIGS")


def record(acl: Acl, number: int = 0) -> AclRecord:
    return {
        "type": "AclCreated",
        "id": f"acl-{number}",
        "resource_type": acl.resource_type.name,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }


@pytest.mark.parametrize("seed", range(200))
def test_its_rules_and_the_products_agree(seed: int) -> None:
    """Two implementations of one meaning: each finds the mistakes of the other."""
    entropy = SeededEntropy(random.Random(seed))
    acls = {random_acl(entropy) for _ in range(seed % 9)}
    index = AclIndex()
    for acl in acls:
        index.add(acl)
    for user in USERS:
        for name in (*TOPICS, "guarded-7-new", "other"):
            for operation in OPERATIONS:
                verdict = index.verdict(
                    f"User:{user}", "192.0.2.1", Operation[operation], ResourceType.TOPIC, name
                )
                found = allows(map(record, acls), user, operation, name)
                assert found is (verdict is Verdict.ALLOWED), f"seed {seed}: {user} {operation} {name}"


def read_of(user: str, *, deny: bool = False) -> Acl:
    permission = Permission.DENY if deny else Permission.ALLOW
    literal = PatternType.LITERAL
    return Acl(ResourceType.TOPIC, TOPICS[0], literal, f"User:{user}", "*", Operation.READ, permission)


def entry(number: int, *records: AclRecord, epoch: int = 1) -> tuple[int, bytes]:
    body = {
        "controller_id": epoch,
        "controller_incarnation": f"i{epoch}",
        "controller_epoch": epoch,
        "records": [*records],
    }
    return number, json.dumps(body).encode()


TAKEN: AclRecord = {"type": "TakeOffice"}  # codespell:ignore
ENTRIES = [
    entry(0, TAKEN),
    entry(1, record(read_of("guest-0"), 1)),
    entry(2, {"type": "TopicCreated"}),
    entry(3, TAKEN, epoch=2),
    entry(4, record(read_of("guest-1"), 2)),  # of the deposed controller: it does not count
    entry(5, record(read_of("guest-0", deny=True), 3), epoch=2),
    entry(6, {"type": "AclDeleted", "id": "acl-3"}, epoch=2),
]


def test_acls_are_known_by_entry() -> None:
    history = AclHistory(ENTRIES)
    assert history.changes == 3
    assert [len(acls) for acls in history.between(0, 0)] == [0]
    assert [len(acls) for acls in history.between(1, 4)] == [1]
    assert [len(acls) for acls in history.between(0, 99)] == [0, 1, 2, 1]
    assert [len(acls) for acls in history.between(5, 5)] == [2]
    assert [len(acls) for acls in history.between(6, 6)] == [1]


@pytest.mark.parametrize(
    ("user", "is_allowed", "first", "last", "is_right"),
    [
        ("guest-0", True, 1, 1, True),
        ("guest-0", True, 0, 0, False),
        ("guest-0", True, 0, 1, True),
        ("guest-0", False, 0, 1, True),
        ("guest-0", False, 1, 4, False),
        ("guest-0", True, 5, 5, False),
        ("guest-0", True, 5, 6, True),
        ("guest-0", False, 6, 9, False),
        ("guest-1", True, 0, 9, False),
        ("guest-1", False, 0, 9, True),
    ],
)
def test_an_answer_is_judged_by_the_entries_that_may_have_been_known(
    user: str, is_allowed: bool, first: int, last: int, is_right: bool
) -> None:
    ledger = RightsLedger()
    ledger.note(Judged(user, "READ", TOPICS[0], is_allowed, first, last, "broker-1"))
    found = ledger.violations(ENTRIES)
    assert (found == []) is is_right, found
    assert is_right or ("served" if is_allowed else "refused") in found[0]
    assert ledger.violations(None) == [], "nothing can be judged without the log"
