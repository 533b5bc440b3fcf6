"""The ACLs in the metadata, which decide: may a principal on a host perform an operation on a resource?

The meaning is that of Kafka's StandardAuthorizer:

- an ACL that denies prevails over every ACL that allows;
- to allow READ, WRITE, DELETE or ALTER implies to allow DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS;
  to deny implies nothing;
- a literal pattern ``*`` selects every resource, a prefixed one every name with the prefix;
- if ACLs select the resource, but none of them matches principal, host and operation, the answer is no.

For each pattern the index has the bit sets of allowed and denied operations by (principal, host). So one
check looks up the resource's name, ``*``, and one prefix for each length that a prefixed pattern has: its
cost does not depend on the number of ACLs.
"""

from __future__ import annotations

import enum
import heapq
import ipaddress
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NewType

import msgspec

from nilometer.cluster.acl import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from nilometer.cluster.records import AclCreated, AclDeleted
from nilometer.invariants import InvariantBroken

PROBED_NAME = "hardcode"
"""The resource name with which Kafka's authorizer begins when it looks for any resource of a type. It decides
only if no ACL does: then that of a broker with ``allow.everyone.if.no.acl.found``."""

_ALL_BIT = 1 << Operation.ALL
_IMPLYING = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
_ALLOWING_BITS = tuple(
    _ALL_BIT | 1 << operation | sum(1 << implying for implying in _IMPLYING.get(operation, ()))
    for operation in Operation
)
"""By operation: the operations of ACLs that allow it."""
_DENYING_BITS = tuple(_ALL_BIT | 1 << operation for operation in Operation)


class Verdict(enum.Enum):
    """What the ACLs say about an operation."""

    ALLOWED = "an ACL allows it"
    DENIED = "an ACL denies it"
    NO_MATCH = "none of the resource's ACLs allows it"
    NO_ACL = "the resource has no ACL"


def host_key(host: str) -> str:
    """Return ``host`` in the form in which hosts are compared: IPv6 addresses in one notation."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or address)


class _Rights(msgspec.Struct):
    """The operations of the ACLs of one pattern, principal and host, as bit sets."""

    allowed: int = 0
    denied: int = 0


_Who = tuple[str, str]
"""A principal and a host, either of which may be the wildcard."""
_ByWho = dict[_Who, _Rights]


class _Patterns(msgspec.Struct):
    """The patterns of one type of resource."""

    literal: dict[str, _ByWho] = msgspec.field(default_factory=dict[str, _ByWho])
    prefixed: dict[str, _ByWho] = msgspec.field(default_factory=dict[str, _ByWho])
    lengths: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    """The number of prefixed patterns by the length of their prefix."""
    of: dict[_Who, dict[tuple[PatternType, str], None]] = msgspec.field(
        default_factory=dict[_Who, dict[tuple[PatternType, str], None]]
    )
    """The patterns of which the principal and host have ACLs."""

    def by_type(self, kind: PatternType) -> dict[str, _ByWho]:
        return self.prefixed if kind is PatternType.PREFIXED else self.literal

    def selecting(self, name: str) -> Iterator[_ByWho]:
        """Yield the rights of the patterns that select ``name``."""
        literal = self.literal
        if (found := literal.get(name)) is not None:
            yield found
        if name != WILDCARD and (found := literal.get(WILDCARD)) is not None:
            yield found
        yield from self.prefixes_of(name)

    def prefixes_of(self, name: str) -> Iterator[_ByWho]:
        for length in self.lengths:
            if length <= len(name) and (found := self.prefixed.get(name[:length])) is not None:
                yield found


class AclIndex:
    """All ACLs, for decisions. Invariant: no ACL is added twice, or removed without having been added."""

    __slots__ = ("_patterns",)

    def __init__(self) -> None:
        self._patterns: dict[ResourceType, _Patterns] = {}

    def add(self, acl: Acl) -> None:
        patterns = self._patterns.setdefault(acl.resource_type, _Patterns())
        pattern, who = (acl.pattern_type, acl.resource_name), (acl.principal, host_key(acl.host))
        named = patterns.by_type(acl.pattern_type)
        if acl.resource_name not in named:
            named[acl.resource_name] = {}
            if acl.pattern_type is PatternType.PREFIXED:
                length = len(acl.resource_name)
                patterns.lengths[length] = patterns.lengths.get(length, 0) + 1
        rights = named[acl.resource_name].setdefault(who, _Rights())
        if acl.permission is Permission.ALLOW:
            rights.allowed |= 1 << acl.operation
        else:
            rights.denied |= 1 << acl.operation
        patterns.of.setdefault(who, {})[pattern] = None

    def remove(self, acl: Acl) -> None:
        patterns = self._patterns[acl.resource_type]
        who = acl.principal, host_key(acl.host)
        named = patterns.by_type(acl.pattern_type)
        by_who = named[acl.resource_name]
        rights = by_who[who]
        if acl.permission is Permission.ALLOW:
            rights.allowed &= ~(1 << acl.operation)
        else:
            rights.denied &= ~(1 << acl.operation)
        if not (rights.allowed or rights.denied):
            del by_who[who]
            del patterns.of[who][acl.pattern_type, acl.resource_name]
            if not patterns.of[who]:
                del patterns.of[who]
        if not by_who:
            del named[acl.resource_name]
            if acl.pattern_type is PatternType.PREFIXED:
                _count_down(patterns.lengths, len(acl.resource_name))

    def verdict(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> Verdict:
        """Return what the ACLs say. ``host``: a result of :func:`host_key`."""
        patterns = self._patterns.get(resource_type)
        if patterns is None:
            return Verdict.NO_ACL
        allowed = denied = 0
        has_acls = False
        for by_who in patterns.selecting(name):
            has_acls = True
            for who in _whos(principal, host):
                rights = by_who.get(who)
                if rights is not None:
                    allowed |= rights.allowed
                    denied |= rights.denied
        if denied & _DENYING_BITS[operation]:
            return Verdict.DENIED
        if allowed & _ALLOWING_BITS[operation]:
            return Verdict.ALLOWED
        return Verdict.NO_MATCH if has_acls else Verdict.NO_ACL

    def allows_some(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        *,
        if_no_acl: bool = False,
    ) -> bool:
        """Return whether ``operation`` is allowed on some resource of the type, existing or not (KIP-679).

        Implied operations do not count, and a denial counts only where it covers the whole pattern that
        allows: as in Kafka. ``if_no_acl``: whether resources without ACLs are allowed.
        """
        probed = self.verdict(principal, host, operation, resource_type, PROBED_NAME)
        if probed is Verdict.ALLOWED or (probed is Verdict.NO_ACL and if_no_acl):
            return True
        patterns = self._patterns.get(resource_type)
        if patterns is None:
            return False
        whos, bits = _whos(principal, host), _DENYING_BITS[operation]

        def denies(by_who: _ByWho) -> bool:
            return any(who in by_who and by_who[who].denied & bits for who in whos)

        if WILDCARD in patterns.literal and denies(patterns.literal[WILDCARD]):
            return False
        for who in whos:
            for kind, name in patterns.of.get(who, ()):
                by_who = patterns.by_type(kind)[name]
                if not by_who[who].allowed & bits:
                    continue
                if kind is PatternType.LITERAL and name == WILDCARD:
                    return True
                is_denied = kind is PatternType.LITERAL and denies(by_who)
                if not is_denied and not any(map(denies, patterns.prefixes_of(name))):
                    return True
        return False


def _whos(principal: str, host: str) -> tuple[_Who, ...]:
    """Return the principals and hosts of the ACLs that apply to this principal on this host."""
    return (
        (principal, host),
        (principal, WILDCARD),
        (WILDCARD_PRINCIPAL, host),
        (WILDCARD_PRINCIPAL, WILDCARD),
    )


def _count_down(counts: dict[int, int], key: int) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


AclId = NewType("AclId", str)


def acl_of(record: AclCreated) -> Acl:
    """Return the ACL of a record. Raises KeyError if it has a type or operation that this version lacks."""
    return Acl(
        ResourceType[record.resource_type],
        record.resource_name,
        PatternType[record.pattern_type],
        record.principal,
        record.host,
        Operation[record.operation],
        Permission[record.permission],
    )


def record_of(acl_id: AclId, acl: Acl) -> AclCreated:
    return AclCreated(
        id=acl_id,
        resource_type=acl.resource_type.name,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type.name,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation.name,
        permission=acl.permission.name,
    )


STEP_ACLS = 256
"""So many ACLs are compared with a filter in a step: 1 us each."""


class AclTable:
    """All ACLs by id. Invariant: no two of them are equal."""

    __slots__ = ("_by_id", "_by_name", "_ids", "index")

    def __init__(self) -> None:
        self._by_id: dict[AclId, Acl] = {}
        self._ids: dict[Acl, AclId] = {}
        self._by_name: dict[int, dict[str, dict[AclId, Acl]]] = {}
        """By the length of the resource's name, and the name."""
        self.index = AclIndex()

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._ids

    def items(self) -> Iterator[tuple[AclId, Acl]]:
        return iter(self._by_id.items())

    def select(self, wanted: AclFilter) -> Generator[int, None, dict[AclId, Acl]]:
        """Return the ACLs that ``wanted`` selects, in their order; yields after each step how many it was
        about."""
        runs: list[list[tuple[Acl, AclId]]] = []
        candidates = self._candidates(wanted)
        for first in range(0, len(candidates), STEP_ACLS):
            some = candidates[first : first + STEP_ACLS]
            runs.append(sorted((acl, acl_id) for acl_id, acl in some if wanted.matches(acl)))
            yield len(some)
        found: dict[AclId, Acl] = {}
        for acl, acl_id in heapq.merge(*runs):
            found[acl_id] = acl
            if len(found) % STEP_ACLS == 0:
                yield STEP_ACLS
        return found

    def _candidates(self, wanted: AclFilter) -> list[tuple[AclId, Acl]]:
        """Return all ACLs that ``wanted`` may select."""
        name = wanted.resource_name
        if name is None:
            return list(self._by_id.items())
        if wanted.pattern_type is not PatternType.MATCH:
            return list(self._by_name.get(len(name), {}).get(name, {}).items())
        names = {name[:length] for length in self._by_name if length <= len(name)} | {WILDCARD}
        return [one for each in names for one in self._by_name.get(len(each), {}).get(each, {}).items()]

    def has_id(self, acl_id: str) -> bool:
        return acl_id in self._by_id

    def get(self, acl_id: str) -> Acl:
        """Return the ACL with this id. Raises InvariantBroken if there is none."""
        try:
            return self._by_id[AclId(acl_id)]
        except KeyError:
            raise InvariantBroken(f"ACL {acl_id} is removed, although there is none with this id") from None

    def apply(self, record: AclCreated | AclDeleted) -> Callable[[], object]:
        """Add or remove an ACL; return the function that undoes it. Raises InvariantBroken as these do."""
        if isinstance(record, AclCreated):
            self.add(record.id, acl_of(record))
            return lambda: self.remove(record.id)
        acl = self.remove(record.id)
        return lambda: self.add(record.id, acl)

    def add(self, acl_id: str, acl: Acl) -> None:
        """Raises InvariantBroken if the id is taken, or if the ACL exists."""
        if acl_id in self._by_id or acl in self._ids:
            raise InvariantBroken(f"{acl} is added with id {acl_id}, although the id is taken or it exists")
        self._by_id[AclId(acl_id)] = acl
        self._ids[acl] = AclId(acl_id)
        named = self._by_name.setdefault(len(acl.resource_name), {})
        named.setdefault(acl.resource_name, {})[AclId(acl_id)] = acl
        self.index.add(acl)

    def remove(self, acl_id: str) -> Acl:
        """Raises InvariantBroken if there is no such ACL."""
        acl = self.get(acl_id)
        del self._by_id[AclId(acl_id)]
        del self._ids[acl]
        self._forget_name(AclId(acl_id), acl.resource_name)
        self.index.remove(acl)
        return acl

    def _forget_name(self, acl_id: AclId, name: str) -> None:
        names = self._by_name[len(name)]
        del names[name][acl_id]
        if not names[name]:
            del names[name]
        if not names:
            del self._by_name[len(name)]

    def snapshot(self) -> tuple[AclCreated, ...]:
        return tuple(record_of(acl_id, self._by_id[acl_id]) for acl_id in sorted(self._by_id))

    def restore(self, records: Iterable[AclCreated]) -> None:
        for record in records:
            self.add(record.id, acl_of(record))
