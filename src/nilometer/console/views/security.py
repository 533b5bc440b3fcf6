"""The lists of ACLs, users and quotas, all as tables of text. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

import msgspec

from nilometer.client.admin.security_admin import EntityQuotas, UserCredential
from nilometer.cluster.acl import Acl
from nilometer.console.views.paging import Asked, Page, page_of

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
