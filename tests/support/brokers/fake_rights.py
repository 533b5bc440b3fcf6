"""The rights of a request's principal, as a test states them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from nilometer.broker.api.access import Rights


def rights_of(access: Any = None) -> Rights:
    """Return rights under which every principal has ``access``; without it, every right."""
    if access is None:
        return Rights(None, accepts_unproved_brokers=False)
    authorizer = SimpleNamespace(access=lambda *_: access)
    return Rights(cast(Any, authorizer), accepts_unproved_brokers=False)
