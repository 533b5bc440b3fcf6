"""``auto.offset.reset``: where a consumer without a valid position begins to read. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.client.offsets.special_timestamps import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from nilometer.client.settings.durations import parse_duration_ms

NONE = "none"
BY_DURATION = "by_duration:"


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A position that is looked up with ListOffsets: a timestamp, or a duration before now."""

    timestamp: int = LATEST_TIMESTAMP
    """Milliseconds, or one of ``special_timestamps``."""
    ago_ms: int | None = None
    """If given, used instead of ``timestamp``: milliseconds before the time of the request (KIP-1106)."""

    def timestamp_at(self, wall_ms: int) -> int:
        """Return the timestamp for ListOffsets when the wall clock shows ``wall_ms``."""
        return self.timestamp if self.ago_ms is None else max(wall_ms - self.ago_ms, 0)


EARLIEST = OffsetReset(EARLIEST_TIMESTAMP)
LATEST = OffsetReset(LATEST_TIMESTAMP)


def parse_offset_reset(text: str) -> OffsetReset | None:
    """Parse a value of ``auto.offset.reset``; return None for ``none``. Raises ValueError."""
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    if text == NONE:
        return None
    if not text.startswith(BY_DURATION):
        raise ValueError(f"must be earliest, latest, none or by_duration:PnDTnHnMn.nS, not {text}")
    return OffsetReset(ago_ms=parse_duration_ms(text.removeprefix(BY_DURATION)))
