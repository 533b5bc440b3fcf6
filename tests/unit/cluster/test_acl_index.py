"""Decisions by ACLs: Kafka's rules one by one, and the index against a model that looks at every ACL.

A failing random case is printed with the `@reproduce_failure` line that replays it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.cluster.acl import (
    SUPPORTED_OPERATIONS,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    operation_bits,
)
from nilometer.cluster.acl_table import PROBED_NAME, AclIndex, Verdict, host_key
from support.properties import examples

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
ALICE, HOST = "User:alice", "10.0.0.1"


def acl(
    name: str,
    operation: Operation = READ,
    permission: Permission = ALLOW,
    *,
    pattern: PatternType = LITERAL,
    kind: ResourceType = TOPIC,
    principal: str = ALICE,
    host: str = WILDCARD,
) -> Acl:
    return Acl(kind, name, pattern, principal, host, operation, permission)


def index_of(acls: Iterable[Acl]) -> AclIndex:
    index = AclIndex()
    for each in acls:
        index.add(each)
    return index


def verdict(*acls: Acl, operation: Operation = READ, name: str = "orders", host: str = HOST) -> Verdict:
    return index_of(acls).verdict(ALICE, host_key(host), operation, TOPIC, name)


# ── rules, one by one ───────────────────────────────────────────────────────────────────────────────
def test_a_resource_without_acls_has_a_verdict_of_its_own() -> None:
    assert verdict() is Verdict.NO_ACL
    assert verdict(acl("orders", kind=GROUP)) is Verdict.NO_ACL
    assert verdict(acl("orders", principal="User:bob")) is Verdict.NO_MATCH


@pytest.mark.parametrize(
    ("name", "pattern", "selects"),
    [
        ("orders", LITERAL, True),
        ("order", LITERAL, False),
        (WILDCARD, LITERAL, True),
        ("order", PREFIXED, True),
        ("orders", PREFIXED, True),
        ("orders-eu", PREFIXED, False),
        (WILDCARD, PREFIXED, False),
    ],
)
def test_patterns(name: str, pattern: PatternType, selects: bool) -> None:
    assert (verdict(acl(name, pattern=pattern)) is Verdict.ALLOWED) is selects


@pytest.mark.parametrize("denied", [acl(WILDCARD, READ, DENY), acl("o", READ, DENY, pattern=PREFIXED)])
def test_a_denial_prevails_over_every_allowance(denied: Acl) -> None:
    assert verdict(acl("orders"), acl("orders", ALL), denied) is Verdict.DENIED


@pytest.mark.parametrize("operation", list(Operation)[3:])
def test_implied_operations(operation: Operation) -> None:
    """To allow implies to describe; to deny implies nothing; ALL is every operation."""
    describes = operation in (READ, WRITE, Operation.DELETE, Operation.ALTER, DESCRIBE)
    configs = operation in (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)
    for asked, implied in ((DESCRIBE, describes), (Operation.DESCRIBE_CONFIGS, configs)):
        allowed = verdict(acl("orders", operation), operation=asked)
        assert (allowed is Verdict.ALLOWED) is implied
        denied = verdict(acl("orders", asked), acl("orders", operation, DENY), operation=asked)
        assert (denied is Verdict.DENIED) is (asked is operation)
    assert verdict(acl("orders", ALL), operation=operation) is Verdict.ALLOWED
    assert verdict(acl("orders", operation), acl("orders", ALL, DENY), operation=operation) is Verdict.DENIED


@pytest.mark.parametrize(
    ("given", "host", "same"),
    [
        (HOST, HOST, True),
        (HOST, "10.0.0.2", False),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("fe80::1", "fe80::1%eth0", True),
        ("not:an:address", "not:an:address", True),
    ],
)
def test_hosts(given: str, host: str, same: bool) -> None:
    assert (verdict(acl("orders", host=given), host=host) is Verdict.ALLOWED) is same


def test_the_wildcard_principal_is_every_principal() -> None:
    index = index_of([acl("orders", principal=WILDCARD_PRINCIPAL)])
    for principal in (ALICE, "Token:x", WILDCARD_PRINCIPAL):
        assert index.verdict(principal, HOST, READ, TOPIC, "orders") is Verdict.ALLOWED


def test_an_operation_on_some_resource() -> None:
    def some(*acls: Acl, if_no_acl: bool = False, operation: Operation = WRITE) -> bool:
        return index_of(acls).allows_some(ALICE, HOST, operation, TOPIC, if_no_acl=if_no_acl)

    anything = acl(WILDCARD, WRITE)
    assert not some()
    assert some(if_no_acl=True)
    assert some(acl("orders", WRITE))
    assert not some(acl("orders", READ))
    assert not some(acl("orders", WRITE, kind=GROUP))
    assert not some(acl("orders", WRITE), operation=DESCRIBE), "implied operations do not count"
    assert not some(acl("orders", WRITE), acl(WILDCARD, WRITE, DENY))
    assert not some(acl("orders", WRITE), acl("orders", ALL, DENY))
    assert not some(acl("orders", WRITE), acl("or", WRITE, DENY, pattern=PREFIXED))
    assert some(acl("or", WRITE, pattern=PREFIXED), acl("orders", WRITE, DENY))
    assert some(anything, acl("o", WRITE, DENY, pattern=PREFIXED), acl("h", WRITE, DENY, pattern=PREFIXED))
    assert not some(acl(WILDCARD, READ, principal="User:bob"), if_no_acl=True), (
        "there is an ACL of all topics"
    )


def test_filters() -> None:
    """KIP-290: `MATCH` selects every pattern that selects the name, other types only that pattern."""
    orders, ord_, all_ = acl("orders"), acl("ord", pattern=PREFIXED), acl(WILDCARD)
    prefixed = acl("orders", pattern=PREFIXED)

    def found(name: str | None, pattern: PatternType) -> list[Acl]:
        wanted = AclFilter(TOPIC, name, pattern)
        return [each for each in (orders, ord_, all_, prefixed) if wanted.matches(each)]

    assert found("orders", LITERAL) == [orders]
    assert found("orders", PREFIXED) == [prefixed]
    assert found("orders", PatternType.ANY) == [orders, prefixed]
    assert found("orders", PatternType.MATCH) == [orders, ord_, all_, prefixed]
    assert found(WILDCARD, LITERAL) == [all_]
    assert found(None, LITERAL) == [orders, all_]
    assert not AclFilter(principal="User:bob").matches(orders)
    assert not AclFilter(operation=WRITE).matches(orders)
    assert not AclFilter(permission=DENY).matches(orders)
    assert not AclFilter(host=HOST).matches(orders)
    assert AclFilter().matches(orders)


def test_bits_of_operations() -> None:
    assert operation_bits(SUPPORTED_OPERATIONS[TOPIC]) == 0b1101_1111_1000
    assert operation_bits(SUPPORTED_OPERATIONS[ResourceType.CLUSTER]) == 0b1_1111_1010_0000


# ── against a model ─────────────────────────────────────────────────────────────────────────────────
NAMES = ("a", "ab", "abc", "b", "é", PROBED_NAME, WILDCARD)
PRINCIPALS = (ALICE, "User:bob", WILDCARD_PRINCIPAL)
HOSTS = (HOST, "10.0.0.2", WILDCARD)
OPERATIONS = (
    READ,
    WRITE,
    DESCRIBE,
    ALL,
    Operation.ALTER,
    Operation.ALTER_CONFIGS,
    Operation.DESCRIBE_CONFIGS,
)
ACLS = st.builds(
    Acl,
    st.sampled_from((TOPIC, GROUP)),
    st.sampled_from(NAMES),
    st.sampled_from((LITERAL, PREFIXED)),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from((ALLOW, ALLOW, DENY)),
)


def applies(each: Acl, principal: str, host: str) -> bool:
    return each.principal in (principal, WILDCARD_PRINCIPAL) and each.host in (host, WILDCARD)


def implies(granted: Operation, asked: Operation) -> bool:
    if asked is DESCRIBE and granted in (READ, WRITE, Operation.DELETE, Operation.ALTER):
        return True
    if asked is Operation.DESCRIBE_CONFIGS and granted is Operation.ALTER_CONFIGS:
        return True
    return granted in (asked, ALL)


def modelled(
    acls: set[Acl], principal: str, host: str, asked: Operation, kind: ResourceType, name: str
) -> Verdict:
    selecting = [each for each in acls if each.resource_type is kind and each.selects(name)]
    if not selecting:
        return Verdict.NO_ACL
    mine = [each for each in selecting if applies(each, principal, host)]
    if any(each.permission is DENY and each.operation in (asked, ALL) for each in mine):
        return Verdict.DENIED
    if any(each.permission is ALLOW and implies(each.operation, asked) for each in mine):
        return Verdict.ALLOWED
    return Verdict.NO_MATCH


def modelled_some(acls: set[Acl], principal: str, host: str, asked: Operation, kind: ResourceType) -> bool:
    """Whether an ACL allows, and no ACL denies its whole pattern: every ACL is looked at."""
    if modelled(acls, principal, host, asked, kind, PROBED_NAME) is Verdict.ALLOWED:
        return True
    mine = {
        each
        for each in acls
        if each.resource_type is kind and applies(each, principal, host) and each.operation in (asked, ALL)
    }
    denied = [each for each in mine if each.permission is DENY]

    def covers(denial: Acl, allowance: Acl) -> bool:
        if denial.pattern_type is LITERAL and denial.resource_name == WILDCARD:
            return True
        if allowance.pattern_type is LITERAL and allowance.resource_name == WILDCARD:
            return False
        if denial.pattern_type is LITERAL:
            return allowance.pattern_type is LITERAL and denial.resource_name == allowance.resource_name
        return allowance.resource_name.startswith(denial.resource_name)

    return any(
        not any(covers(denial, each) for denial in denied) for each in mine if each.permission is ALLOW
    )


@examples(300)
@given(st.sets(ACLS, max_size=12), st.data())
def test_the_index_decides_as_the_model(acls: set[Acl], data: st.DataObject) -> None:
    removed = data.draw(st.sets(st.sampled_from(sorted(acls)))) if acls else set[Acl]()
    index = index_of(sorted(acls))
    for each in sorted(removed):
        index.remove(each)
    left = acls - removed
    for principal in PRINCIPALS[:2]:
        for host in HOSTS[:2]:
            for asked in (READ, WRITE, DESCRIBE, Operation.DESCRIBE_CONFIGS):
                for kind in (TOPIC, GROUP):
                    some = index.allows_some(principal, host, asked, kind)
                    assert some == modelled_some(left, principal, host, asked, kind)
                    for name in NAMES:
                        expected = modelled(left, principal, host, asked, kind, name)
                        assert index.verdict(principal, host, asked, kind, name) is expected


def test_an_emptied_index_is_as_a_new_one() -> None:
    acls = [acl(f"topic-{number}", pattern=pattern) for number in range(5) for pattern in (LITERAL, PREFIXED)]
    index = index_of(acls)
    for each in acls:
        index.remove(each)
    assert index.verdict(ALICE, HOST, READ, TOPIC, "topic-1") is Verdict.NO_ACL
    assert not index.allows_some(ALICE, HOST, READ, TOPIC)
