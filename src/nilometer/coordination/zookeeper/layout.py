"""The paths in ZooKeeper, and the content of the nodes.

/store                       {"format": 1, "cluster_id": …}
/next                        its *version* is the next number: setting it at an expected version is the
                             compare-and-set, and no number is used twice, whatever nodes are deleted
/entries/<number>            created in the same transaction that increments the version of /next
/snapshot                    {"number", "chunks", "folder", "swept"}: the newest one
/snapshots/<folder>/<chunk>  its content, in pieces that a node can hold
/brokers/ids/<id>            ephemeral: the payload and a nonce; its creation zxid is the incarnation
/brokers/incarnations/<id>.<nonce>
                             ephemeral, empty: created and deleted together with /brokers/ids/<id>. Its name
                             is never used again, so a transaction that checks it is of that incarnation only
/secret                      the cluster's secret; its version is the secret's number
/controller                  ephemeral: the name of the session that claimed it
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from nilometer.coordination.store import StoreDamaged

T = TypeVar("T")

FORMAT = 1
STORE = "/store"
CONTROLLER = "/controller"


class StoreNode(msgspec.Struct, frozen=True):
    format: int
    cluster_id: str


class SnapshotNode(msgspec.Struct, frozen=True):
    number: int
    chunks: int
    folder: str
    swept: int


class BrokerNode(msgspec.Struct, frozen=True):
    payload: bytes
    nonce: str = ""
    """A random id, chosen by the process that registered; empty in nodes of older versions."""
    session_timeout_ms: int = 0
    """The session timeout of the broker: how long the node may remain after its process died."""


class ControllerNode(msgspec.Struct, frozen=True):
    broker_id: int
    incarnation: int


NO_SNAPSHOT = SnapshotNode(number=0, chunks=0, folder="", swept=0)
EMPTY_STORE = (
    ("/next", b""),
    ("/entries", b""),
    ("/snapshots", b""),
    ("/snapshot", msgspec.json.encode(NO_SNAPSHOT)),
    ("/brokers", b""),
    ("/brokers/ids", b""),
    ("/brokers/incarnations", b""),
)


def entry_path(number: int) -> str:
    return f"/entries/{number:020d}"


def chunk_path(folder: str, chunk: int) -> str:
    return f"/snapshots/{folder}/{chunk:06d}"


def broker_path(broker_id: int) -> str:
    return f"/brokers/ids/{broker_id}"


def incarnation_path(broker_id: int, nonce: str) -> str:
    return f"/brokers/incarnations/{broker_id}.{nonce}"


def decoded(path: str, data: bytes, kind: type[T]) -> T:
    """Parse the content of a node as ``kind``. Raises StoreDamaged."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(
            f"{path} in ZooKeeper has content that nilometer did not write: {error}"
        ) from error
