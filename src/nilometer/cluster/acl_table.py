"""The ACLs in the metadata: each with its id, and the index that decides with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NewType

from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.cluster.acl_index import AclIndex
from nilometer.cluster.records import AclCreated, AclDeleted
from nilometer.invariants import InvariantBroken

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


class AclTable:
    """All ACLs by id. Invariant: no two of them are equal."""

    __slots__ = ("_by_id", "_ids", "index")

    def __init__(self) -> None:
        self._by_id: dict[AclId, Acl] = {}
        self._ids: dict[Acl, AclId] = {}
        self.index = AclIndex()

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._ids

    def items(self) -> Iterator[tuple[AclId, Acl]]:
        return iter(self._by_id.items())

    def has_id(self, acl_id: str) -> bool:
        return acl_id in self._by_id

    def get(self, acl_id: str) -> Acl:
        """Return the ACL with this id. Raises InvariantBroken if there is none."""
        try:
            return self._by_id[AclId(acl_id)]
        except KeyError:
            raise InvariantBroken(f"there is no ACL with id {acl_id}") from None

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
        self.index.add(acl)

    def remove(self, acl_id: str) -> Acl:
        """Raises InvariantBroken if there is no such ACL."""
        acl = self.get(acl_id)
        del self._by_id[AclId(acl_id)]
        del self._ids[acl]
        self.index.remove(acl)
        return acl

    def snapshot(self) -> tuple[AclCreated, ...]:
        return tuple(record_of(acl_id, self._by_id[acl_id]) for acl_id in sorted(self._by_id))

    def restore(self, records: Iterable[AclCreated]) -> None:
        for record in records:
            self.add(record.id, acl_of(record))
