"""Lists of thousands, a page at a time: what matches a search, in which order, and which page it is; and the
pages that are one list each: open transactions, ACLs, users, quotas. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

import msgspec

from nilometer.client.admin.security_admin import EntityQuotas, UserCredential
from nilometer.client.admin.transaction_admin import (
    WITHOUT_TRANSACTION,
    OpenTransaction,
    TransactionDescription,
    TransactionListing,
)
from nilometer.cluster.acl import Acl
from nilometer.wire.errors import KafkaError

T = TypeVar("T")
S = TypeVar("S")

PAGE_SIZE = 50
NAME = "name"

Columns = Mapping[str, Callable[[T], Any]]
"""What a list can be sorted by beside the name: a value of each item; None where it is not known."""


class Asked(msgspec.Struct, frozen=True):
    """What a browser asks of a list."""

    query: str = ""
    number: int = 1
    column: str = NAME
    descending: bool = False


class Page(msgspec.Struct, Generic[T], frozen=True):
    items: tuple[T, ...]
    number: int
    """From 1; at most ``pages``."""
    pages: int
    matching: int
    total: int
    asked: Asked
    """``column`` is one that the list has."""

    def showing(self, items: tuple[S, ...]) -> Page[S]:
        """Return this page with other items: what is shown of those that it has."""
        return Page(items, self.number, self.pages, self.matching, self.total, self.asked)

    @property
    def first(self) -> int:
        """The number of the first item shown, from 1; 0 if there is none."""
        return 0 if not self.matching else (self.number - 1) * PAGE_SIZE + 1

    @property
    def last(self) -> int:
        return max(0, self.first + len(self.items) - 1)


def page_of(
    items: Sequence[T], name: Callable[[T], str], asked: Asked, columns: Columns[T] | None = None
) -> Page[T]:
    """Return the page asked for, of the items whose name contains each word of the query, in any case.

    ``items`` are sorted by name. Items of one value stay so, and those whose value is not known are the last.
    """
    words = asked.query.casefold().split()
    found = [item for item in items if all(word in name(item).casefold() for word in words)]
    value = (columns or {}).get(asked.column)
    if value is None:
        asked = Asked(asked.query, asked.number, NAME, asked.descending and asked.column == NAME)
        found = found[::-1] if asked.descending else found
    else:
        known = [item for item in found if value(item) is not None]
        known.sort(key=value, reverse=asked.descending)
        found = known + [item for item in found if value(item) is None]
    pages = max(1, -(-len(found) // PAGE_SIZE))
    number = min(max(1, asked.number), pages)
    begin = (number - 1) * PAGE_SIZE
    return Page(tuple(found[begin : begin + PAGE_SIZE]), number, pages, len(found), len(items), asked)


# The pages that are one list each: open transactions and who has left one open; ACLs, users and quotas.
# Pure.

# The list of transactions: those that are open, and who has left one open. Pure.


class TransactionRow(msgspec.Struct, frozen=True):
    transactional_id: str
    state: str
    producer_id: int
    coordinator_id: int
    producer_epoch: int | None = None
    """None, as all that follows, of a transaction that this user may not describe."""
    open_ms: int | None = None
    """For how long it has been open; None if none is open."""
    timeout_ms: int | None = None
    partitions: tuple[str, ...] = ()


class HangingRow(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int | None
    last_timestamp_ms: int


class TransactionsView(msgspec.Struct, frozen=True):
    page: Page[TransactionRow]
    all: bool
    """Whether transactional ids without an open transaction are listed."""
    hanging: tuple[HangingRow, ...]


LISTED: Columns[TransactionListing] = {
    "state": lambda one: one.state,
    "producer": lambda one: one.producer_id,
    "coordinator": lambda one: one.coordinator_id,
}


def transactions_page(
    listed: Iterable[TransactionListing], asked: Asked, *, all_ids: bool
) -> Page[TransactionListing]:
    shown = [one for one in listed if all_ids or one.state not in WITHOUT_TRANSACTION]
    return page_of(shown, lambda one: one.transactional_id, asked, LISTED)


def transactions_view(
    page: Page[TransactionListing],
    described: Mapping[str, TransactionDescription | KafkaError],
    hanging: Sequence[HangingRow],
    wall_ms: int,
    *,
    all_ids: bool,
) -> TransactionsView:
    rows = tuple(_row(one, described.get(one.transactional_id), wall_ms) for one in page.items)
    return TransactionsView(page.showing(rows), all_ids, tuple(hanging))


def _row(
    listing: TransactionListing, found: TransactionDescription | KafkaError | None, wall_ms: int
) -> TransactionRow:
    if not isinstance(found, TransactionDescription):
        return TransactionRow(
            listing.transactional_id, listing.state, listing.producer_id, listing.coordinator_id
        )
    return TransactionRow(
        found.transactional_id,
        found.state,
        found.producer_id,
        found.coordinator_id,
        found.producer_epoch,
        _open_ms(found, wall_ms),
        found.timeout_ms,
        tuple(map(str, found.partitions)),
    )


def _open_ms(found: TransactionDescription, wall_ms: int) -> int | None:
    """A coordinator tells the start of an ended transaction, too."""
    if found.start_ms is None or found.state in WITHOUT_TRANSACTION:
        return None
    return max(0, wall_ms - found.start_ms)


def hanging_row(one: OpenTransaction) -> HangingRow:
    producer = one.producer
    return HangingRow(
        one.partition.topic,
        one.partition.partition,
        producer.producer_id,
        producer.producer_epoch,
        producer.start_offset,
        producer.last_timestamp_ms,
    )


# The lists of ACLs, users and quotas, all as tables of text. Pure.

Row = tuple[str, ...]

ACLS, USERS, QUOTAS = "acls", "users", "quotas"
ACL_COLUMNS = ("Principal", "Permission", "Operation", "Resource", "Name", "Pattern", "Host")
USER_COLUMNS = ("User", "Mechanism", "Iterations")
QUOTA_COLUMNS = ("Entity", "Quota", "Value")
DEFAULT_ENTITY = "default"


class TableView(msgspec.Struct, frozen=True):
    tab: str
    columns: Row
    page: Page[Row]


def acls_view(acls: Iterable[Acl], asked: Asked) -> TableView:
    rows = (
        (
            each.principal,
            each.permission.name.lower(),
            each.operation.name.lower(),
            each.resource_type.name.lower(),
            each.resource_name,
            each.pattern_type.name.lower(),
            each.host,
        )
        for each in acls
    )
    return _table(ACLS, ACL_COLUMNS, rows, asked)


def users_view(credentials: Iterable[UserCredential], asked: Asked) -> TableView:
    rows = ((each.user, each.mechanism, str(each.iterations)) for each in credentials)
    return _table(USERS, USER_COLUMNS, rows, asked)


def quotas_view(quotas: Iterable[EntityQuotas], asked: Asked) -> TableView:
    rows = (
        (", ".join(f"{kind} {name or DEFAULT_ENTITY}" for kind, name in each.entity), key, f"{value:,.15g}")
        for each in quotas
        for key, value in each.values.items()
    )
    return _table(QUOTAS, QUOTA_COLUMNS, rows, asked)


def _table(tab: str, columns: Row, rows: Iterable[Row], asked: Asked) -> TableView:
    """Rows are sorted from their first column on; a search is in all columns."""
    by = {str(at): itemgetter(at) for at in range(1, len(columns))}
    return TableView(tab, columns, page_of(sorted(rows), " ".join, asked, by))
