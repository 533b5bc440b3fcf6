"""The findings of an audit, as values: each names its kind, the replica, the file and the place in it."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any


class Kind(enum.StrEnum):
    CORRUPT_BATCH = "corrupt batch"
    MISSING_RECORDS = "missing records"
    OFFSET_ORDER = "offset order"
    EPOCH = "leader epoch"
    INDEX = "offset index"
    TIME_INDEX = "time index"
    TRANSACTION_INDEX = "transaction index"
    PRODUCER_SNAPSHOT = "producer snapshot"
    CHECKPOINT = "checkpoint"
    DIVERGENCE = "diverging replica"
    COMMITTED_OFFSET = "committed offset"
    NOTE = "note"
    """For information: not an error."""


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    topic: str
    partition: int
    replica: str
    """The broker that holds the replica (``broker 2``), or the log directory if it names no broker."""
    path: str
    position: int | None
    """The position in the file, in bytes; None if the finding has none."""
    offset: int | None
    what: str

    @property
    def is_wrong(self) -> bool:
        return self.kind is not Kind.NOTE

    @property
    def key(self) -> tuple[str, str, int | None, int | None]:
        """The identity of the finding: equal in two rounds that find the same."""
        return self.kind, self.path, self.position, self.offset

    @property
    def place(self) -> str:
        return self.path if self.position is None else f"{self.path}, byte {self.position}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Finding:
        """Return the finding from the value of :meth:`to_json`. Raises KeyError, ValueError."""
        return cls(
            Kind(value["kind"]),
            value["topic"],
            value["partition"],
            value["replica"],
            value["path"],
            value["position"],
            value["offset"],
            value["what"],
        )
