"""Whether what users were served and refused agrees with the ACLs in the metadata log.

The rules are written here a second time, from Kafka's documentation of ACLs, and share no code with the
product. Each answer is judged by the ACLs of the entries that the answering broker may have known: from the
last entry that it had applied when the request was sent to the last one when the response arrived. For a
request that the controller decides, these are the entries of any broker. At rest every broker has applied all
entries, so that a right that was given or taken away must be in force everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from nilometer.simulation.checkers.metadata import counted_records

VIOLATIONS_MAX = 10
IMPLYING = {"DESCRIBE": ("READ", "WRITE", "DELETE", "ALTER"), "DESCRIBE_CONFIGS": ("ALTER_CONFIGS",)}

AclRecord = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Judged:
    """One answer: whether ``user`` was allowed ``operation`` on the topic ``name``.

    ``first``, ``last``: the numbers of the entries that may have been the newest ones for it.
    """

    user: str
    operation: str
    name: str
    is_allowed: bool
    first: int
    last: int
    broker: str
    """The broker that answered."""


def allows(acls: Iterable[AclRecord], user: str, operation: str, name: str) -> bool:
    """Return whether ``acls`` allow ``operation`` on the topic ``name`` to ``user``, from any host."""
    own = [
        acl
        for acl in acls
        if acl["resource_type"] == "TOPIC"
        and acl["principal"] in (f"User:{user}", "User:*")
        and acl["host"] == "*"
        and _selects(acl, name)
    ]
    if any(acl["permission"] == "DENY" and acl["operation"] in ("ALL", operation) for acl in own):
        return False
    enough = ("ALL", operation, *IMPLYING.get(operation, ()))
    return any(acl["permission"] == "ALLOW" and acl["operation"] in enough for acl in own)


def _selects(acl: AclRecord, name: str) -> bool:
    if acl["pattern_type"] == "PREFIXED":
        return name.startswith(acl["resource_name"])
    return acl["resource_name"] in (name, "*")


class AclHistory:
    """The ACLs after each entry of the metadata log."""

    def __init__(self, entries: Iterable[tuple[int, bytes]]) -> None:
        self._states: list[tuple[int, tuple[AclRecord, ...]]] = [(-1, ())]
        acls: dict[str, AclRecord] = {}
        for number, records in counted_records(entries):
            before = dict(acls)
            for record in records:
                if record["type"] == "AclCreated":
                    acls[record["id"]] = record
                elif record["type"] == "AclDeleted":
                    del acls[record["id"]]
            if acls != before:
                self._states.append((number, tuple(acls.values())))

    @property
    def changes(self) -> int:
        return len(self._states) - 1

    def between(self, first: int, last: int) -> Iterator[tuple[AclRecord, ...]]:
        """Yield the ACLs that were in force after some entry from ``first`` to ``last``."""
        ends = [number for number, _ in self._states[1:]]
        for (number, acls), end in zip(self._states, (*ends, last + 1), strict=True):
            if number <= last and end > first:
                yield acls


class RightsLedger:
    def __init__(self) -> None:
        self.answers: list[Judged] = []
        self.counts: Counter[str] = Counter()

    def note(self, answer: Judged) -> None:
        self.answers.append(answer)
        self.counts["allowed" if answer.is_allowed else "denied"] += 1

    def violations(self, entries: list[tuple[int, bytes]] | None) -> list[str]:
        """Return the answers that no ACLs explain. ``entries``: the metadata log; None: it is incomplete."""
        if entries is None:
            return []
        history = AclHistory(entries)
        return [
            f"rights: {'served' if each.is_allowed else 'refused'} {each.user} {each.operation} on "
            f"{each.name} against the ACLs of the entries {each.first} to {each.last}: {each.broker}"
            for each in self.answers
            if not _is_explained(each, history)
        ][:VIOLATIONS_MAX]


def _is_explained(answer: Judged, history: AclHistory) -> bool:
    return any(
        allows(acls, answer.user, answer.operation, answer.name) is answer.is_allowed
        for acls in history.between(answer.first, answer.last)
    )
