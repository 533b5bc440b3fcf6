"""What the audit log says about a change of the metadata that a client made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from nilometer.broker.api.spec import Request
from nilometer.broker.authorization.audit_log import AuditLog
from nilometer.broker.services import Services
from nilometer.cluster.entries import Unit

HIDDEN = "(hidden)"
_SECRET = {"value", "credential"}
"""The fields of records that are or may be secrets: values of settings, and credentials."""


def audit_change(audit: AuditLog, request: Request, units: Sequence[Unit]) -> None:
    """Note the records that a client's request has caused; those that brokers cause are not noted."""
    if not request.context.is_broker:
        audit.changed(request.context, request.api.key.name, _described(units))


def audit_own_change(services: Services, request: Request, **change: object) -> None:
    """Note a change that this broker makes itself for a client, without the controller."""
    if services.authorizer is not None and not request.context.is_broker:
        services.authorizer.audit.changed(request.context, request.api.key.name, (change,))


def _described(units: Sequence[Unit]) -> Iterator[dict[str, object]]:
    for unit in units:
        for record in unit:
            described: dict[str, object] = msgspec.to_builtins(record)
            for name in _SECRET & described.keys():
                described[name] = HIDDEN
            yield described
