"""Whether a broker is ready for clients, and if not, why."""

from __future__ import annotations

from nilometer.broker.assembly import ControlParts
from nilometer.identifiers import NO_LEADER, BrokerId


def why_not_ready(broker_id: int, control: ControlParts) -> str | None:
    """Return why this broker cannot serve its clients: it must be registered and not fenced, and a controller
    must be known. None if it is ready."""
    if control.metadata.blocked is not None:
        return f"fenced: {control.metadata.blocked}"
    if not control.session.is_registered or not control.session.is_live():
        return "this broker is not registered: its session has ended, or has not begun"
    image = control.metadata.image
    own = image.broker(BrokerId(broker_id))
    if own is None or own.fenced:
        return "this broker is fenced"
    controller = image.broker(image.controller_id) if image.controller_id != NO_LEADER else None
    if controller is None or controller.fenced:
        return "no controller is known"
    return None
