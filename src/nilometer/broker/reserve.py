"""Memory for the frames of requests whose bytes have not arrived yet."""

from __future__ import annotations

RESERVE_BYTES = 32 * 1024 * 1024
"""For all connections of a listener together."""


class Reserve:
    """How much of that memory is left. Shared by a listener's connections."""

    __slots__ = ("bytes_left",)

    def __init__(self, bytes_max: int = RESERVE_BYTES) -> None:
        self.bytes_left = bytes_max
