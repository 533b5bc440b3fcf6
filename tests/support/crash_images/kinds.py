"""Which kind of write an operation of a recording is: an image counts for the one that the cut follows."""

from __future__ import annotations

import posixpath

from support.crash_images.recording import (
    Create,
    Link,
    MakeDirectory,
    Mark,
    Operation,
    Remove,
    Rename,
    Sync,
    SyncDirectory,
    Truncate,
    Write,
)

STORE, OFFSETS, TRANSACTIONS = "coordination store", "__consumer_offsets", "__transaction_state"
VOTE, SNAPSHOT, COMMITTED = "quorum-state", "metadata snapshot", "metadata checkpoint"
IDENTITY, LOCK = "meta.properties", "lock"
APPEND, ROLL, TRUNCATION, REMOVAL = "append", "roll", "truncation", "segment deletion"
INDEX, PRODUCERS, CHECKPOINT, SWAP = "index", "producer snapshot", "checkpoint", "compaction swap"
FOLDER = "partition folder"
METADATA_LOG = {
    APPEND: "metadata append",
    ROLL: "metadata append",
    TRUNCATION: "metadata truncation",
    CHECKPOINT: COMMITTED,
}
"""The kinds of what a log has, in the folder of a metadata quorum."""
OF_NAMES = (
    ((".cleaned", ".swap", ".swapped"), SWAP),
    ((".deleted",), REMOVAL),
    ((".snapshot",), PRODUCERS),
    ((".index", ".timeindex", ".txnindex"), INDEX),
    (("partition.metadata", "-delete", "-stray"), FOLDER),
    (("-checkpoint",), CHECKPOINT),
    (("meta.properties", "nilometer.properties"), IDENTITY),
    (("lock",), LOCK),
)


class Kinds:
    """Call :meth:`of` with each operation of a recording, in order."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        """Of the files, by number."""

    def of(self, operation: Operation) -> str | None:
        """Return the operation's kind; None for a mark."""
        match operation:
            case Mark():
                return None
            case Create(path, file):
                self._paths[file] = path
            case Write(file) | Truncate(file) | Sync(file):
                path = self._paths[file]
            case Rename(source, path):
                self._paths = {
                    file: path if known == source else known for file, known in self._paths.items()
                }
            case Link(_, path) | MakeDirectory(path) | Remove(path) | SyncDirectory(path):
                pass
        return kind_of(path, operation)


def kind_of(path: str, operation: Operation) -> str:
    parts = path.split("/")
    if ".coordination" in parts:
        return STORE
    if any(part.startswith("__consumer_offsets-") for part in parts):
        return OFFSETS
    if any(part.startswith("__transaction_state-") for part in parts):
        return TRANSACTIONS
    kind = _of_log(posixpath.basename(path), operation)
    if not any(part.startswith("__cluster_metadata-") for part in parts):
        return kind
    if "quorum-state" in path:
        return VOTE
    if ".checkpoint" in path:
        return SNAPSHOT
    return METADATA_LOG.get(kind, kind)


def _of_log(name: str, operation: Operation) -> str:
    stem = name.removesuffix(".tmp").rpartition(".")[0] if name.endswith(".tmp") else name
    for suffixes, kind in OF_NAMES:
        if any(suffix in stem for suffix in suffixes):
            return kind
    if not stem.endswith(".log"):
        return FOLDER
    match operation:
        case Truncate():
            return TRUNCATION
        case Create():
            return ROLL
        case Rename() | Remove():
            return REMOVAL
        case _:
            return APPEND
