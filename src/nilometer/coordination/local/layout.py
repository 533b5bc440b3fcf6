"""Names and contents of the local store's files, and how one is put into its place.

    store                             the description: format, cluster, first entries folder
    entries/<base>.<token>/           entries after the snapshot of number <base>
        snapshot                      that snapshot (none in the first folder)
        <number>                      one entry; or the seal: the name of the folder of the next entries
    preparing/<base>.<token>/         an entries folder that is not current yet
    retired/<base>.<token>.<token>/   an entries folder that is being removed
    aside/<token>.<n>                 files before they are linked into place  # codespell:ignore
    sessions/<id>.lock                locked by the process that is (or was last) broker <id>; never unlinked
    sessions/<id>.<incarnation>.session|heartbeat|expired
    sessions/controller.<n>           a link to the session record of the n-th controller; empty: resigned
    members/secret.<number>           the secret; the highest number is valid. Only its owner may read it

Each file starts with one line, ``kind checksum length``, followed by its content.
"""

from __future__ import annotations

import errno
import logging
import posixpath
import re
import zlib
from collections.abc import Iterable, Sequence

import msgspec

from nilometer.coordination.store import SessionName, StoreDamaged, StoreUnavailable
from nilometer.runtime import Disk

FORMAT = 1

STORE = "store"
ENTRIES = "entries"
PREPARING = "preparing"
RETIRED = "retired"
STAGED = "aside"  # codespell:ignore
SESSIONS = "sessions"
MEMBERS = "members"
SNAPSHOT = "snapshot"

KIND_STORE = "store"
KIND_ENTRY = "entry"
KIND_SEAL = "seal"
KIND_SNAPSHOT = "snapshot"
KIND_SESSION = "session"
KIND_SECRET = "secret"


class StoreDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file ``store``. Later formats may add fields; ``format`` is checked first."""

    format: int
    cluster_id: str
    first_folder: str


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a ``.session`` file: the session's name (broker id and incarnation), and the payload
    with which the broker registered, for other brokers to read."""

    broker_id: int
    incarnation: int
    payload: bytes


class FolderName(msgspec.Struct, frozen=True):
    base: int
    text: str


def wrap(kind: str, data: bytes) -> bytes:
    return b"%s %08x %d\n" % (kind.encode(), zlib.crc32(data), len(data)) + data


def unwrap(path: str, content: bytes) -> tuple[str, bytes]:
    """Return the kind and the data of a file's content. Raises StoreDamaged if the checksum is wrong."""
    line, found, data = content.partition(b"\n")
    try:
        kind, checksum, length = line.decode("ascii").split(" ")
        sound = bool(found) and int(length) == len(data) and int(checksum, 16) == zlib.crc32(data)
    except ValueError:
        kind, sound = "", False
    if not sound:
        raise StoreDamaged(
            f"{path} is damaged: its checksum does not match its content; restore it from a copy"
        )
    return kind, data


def entry_name(number: int) -> str:
    return f"{number:020d}"


def folder_name(base: int, token: str) -> str:
    return f"{base:020d}.{token}"


def parse_folder_name(text: str) -> FolderName | None:
    base, dot, _ = text.partition(".")
    return FolderName(int(base), text) if dot and base.isdigit() else None


def newest_folder(names: Sequence[str]) -> FolderName | None:
    folders = [folder for name in names if (folder := parse_folder_name(name)) is not None]
    return max(folders, key=lambda folder: (folder.base, folder.text), default=None)


def lock_name(broker_id: int) -> str:
    return f"{broker_id}.lock"


def session_name(session: SessionName) -> str:
    return f"{session.broker_id}.{session.incarnation}.session"


def heartbeat_name(session: SessionName) -> str:
    return f"{session.broker_id}.{session.incarnation}.heartbeat"


def expired_name(session: SessionName) -> str:
    return f"{session.broker_id}.{session.incarnation}.expired"


def controller_name(claim: int) -> str:
    return f"controller.{claim:010d}"


def secret_name(number: int) -> str:
    return f"secret.{number:010d}"


def secret_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the secret files among ``names``, ascending."""
    return sorted(int(match[1]) for name in names if (match := _SECRET_FILE.fullmatch(name)))


_SESSION_FILE = re.compile(r"(\d+)\.(\d+)\.(session|heartbeat|expired)")
_CONTROLLER_FILE = re.compile(r"controller\.(\d+)")
_SECRET_FILE = re.compile(r"secret\.(\d+)")


class SessionFiles(msgspec.Struct, frozen=True):
    """The sessions and controller claims, parsed from the names in the sessions folder.

    ``seen`` are all sessions with any file; ``claims`` are the numbers of the controller files.
    """

    records: frozenset[SessionName]
    expired: frozenset[SessionName]
    seen: frozenset[SessionName]
    claims: tuple[int, ...]

    @classmethod
    def parse(cls, names: Iterable[str]) -> SessionFiles:
        found: dict[str, set[SessionName]] = {"session": set(), "heartbeat": set(), "expired": set()}
        claims: list[int] = []
        for name in names:
            if match := _SESSION_FILE.fullmatch(name):
                found[match[3]].add(SessionName(int(match[1]), int(match[2])))
            elif match := _CONTROLLER_FILE.fullmatch(name):
                claims.append(int(match[1]))
        seen = frozenset(found["session"] | found["heartbeat"] | found["expired"])
        return cls(frozenset(found["session"]), frozenset(found["expired"]), seen, tuple(sorted(claims)))

    def live(self) -> list[SessionName]:
        """Return the sessions that are registered and not ended, by broker id.

        Only the last incarnation of an id can be live, since each had to take the id's lock.
        """
        last = {session.broker_id: session for session in sorted(self.seen)}
        return [s for s in sorted(last.values()) if s in self.records and s not in self.expired]

    def next_incarnation(self, broker_id: int) -> int:
        used = [session.incarnation for session in self.seen if session.broker_id == broker_id]
        return max(used, default=0) + 1

    def of(self, broker_id: int) -> list[SessionName]:
        return sorted(session for session in self.seen if session.broker_id == broker_id)


# Staged files: written in a folder that no reader uses, then linked with their final names.

logger = logging.getLogger("nilometer.coordination.local.staged_files")


class StagedFiles:
    """Writes staged files, each with a unique name (``token`` and a number)."""

    def __init__(self, disk: Disk, folder: str, token: str) -> None:
        self._disk = disk
        self._prefix = posixpath.join(folder, token)
        self._count = 0

    def new_path(self) -> str:
        self._count += 1
        return f"{self._prefix}.{self._count}"

    def write(self, path: str, content: bytes, *, sync: bool = True, private: bool = False) -> None:
        """Write a staged file. May block. Raises OSError; then the file is removed.

        ``private``: only the owner may read it.
        """
        file = self._disk.open(path, create=True, private=private)
        try:
            try:
                file.append([content])
                if sync:
                    file.sync()
            finally:
                file.close()
        except OSError:
            self.discard(path)
            raise

    def discard(self, path: str) -> None:
        try:
            self._disk.remove(path)
        except FileNotFoundError:
            pass  # another process removed it as stale
        except OSError as error:
            logger.warning("Could not remove %s: %s. The next start of a broker removes it", path, error)


def unavailable(doing: str, error: OSError) -> StoreUnavailable:
    """Return the error to raise for an OSError after which nothing was changed.

    ``doing`` describes the failed action.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable(
            f"the disk is full: {doing} failed ({error}); free some space, nothing was changed"
        )
    return StoreUnavailable(f"{doing} failed: {error}; nothing was changed")
