"""When a broker is ready for clients: registered, not fenced, and with a known controller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.assembly import ControlParts
from nilometer.broker.monitoring.endpoint import why_not_ready
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import NO_LEADER

OWN, OTHER = 1, 2


def control(
    *,
    fenced: dict[int, bool],
    controller_id: int = OTHER,
    registered: bool = True,
    live: bool = True,
    blocked: str | None = None,
) -> ControlParts:
    """``fenced``: whether each registered broker is fenced, by id."""
    brokers = {broker: SimpleNamespace(fenced=is_fenced) for broker, is_fenced in fenced.items()}
    image = cast(ClusterImage, SimpleNamespace(broker=brokers.get, controller_id=controller_id))
    session = SimpleNamespace(is_registered=registered, is_live=lambda: live)
    metadata = SimpleNamespace(image=image, blocked=blocked)
    return cast(ControlParts, SimpleNamespace(session=session, metadata=metadata))


UP: dict[int, bool] = {OWN: False, OTHER: False}


def test_a_registered_broker_with_a_controller_is_ready() -> None:
    assert why_not_ready(OWN, control(fenced=UP)) is None
    assert why_not_ready(OWN, control(fenced=UP, controller_id=OWN)) is None


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"registered": False}, "not registered"),
        ({"live": False}, "not registered"),
        ({"fenced": {OWN: True, OTHER: False}}, "this broker is fenced"),
        ({"fenced": {OTHER: False}}, "this broker is fenced"),
        ({"controller_id": NO_LEADER}, "no controller"),
        ({"fenced": {OWN: False}}, "no controller"),
        ({"fenced": {OWN: False, OTHER: True}}, "no controller"),
        ({"blocked": "entry 7 cannot be applied"}, "fenced: entry 7"),
    ],
)
def test_another_broker_is_not_and_the_reason_is_named(given: dict[str, Any], reason: str) -> None:
    found = why_not_ready(OWN, control(**{"fenced": UP, **given}))
    assert found is not None
    assert reason in found
