"""The folder of a local store: the names and contents of its files, the checks before it is used, and a new
one.
"""

from __future__ import annotations

import errno
import logging
import posixpath
import re
import zlib
from collections.abc import Iterable, Sequence

import msgspec

from nilometer.coordination.store import (
    SessionName,
    StoreAbsent,
    StoreDamaged,
    StoreMoved,
    StoreRefused,
    StoreUnavailable,
)
from nilometer.runtime import Disk
from nilometer.runtime.disk import sync_ancestors

# Names and contents of the local store's files, and how one is put into its place.
#
#     store                             the description: format, cluster, first entries folder
#     entries/<base>.<token>/           entries after the snapshot of number <base>
#         snapshot                      that snapshot (none in the first folder)
#         <number>                      one entry; or the seal: the name of the folder of the next entries
#     preparing/<base>.<token>/         an entries folder that is not current yet
#     retired/<base>.<token>.<token>/   an entries folder that is being removed
#     aside/<token>.<n>                 files before they are linked into place  # codespell:ignore
#     sessions/<id>.lock                locked by the process that is or was broker <id>; never unlinked
#     sessions/<id>.<incarnation>.session|heartbeat|expired
#     sessions/controller.<n>           a link to the session record of the n-th controller; empty: resigned
#     copying.lock                      locked while the store is copied from or to; never unlinked
#     members/secret.<number>           the secret; the highest number is valid. Only its owner may read it
#
# Each file starts with one line, ``kind checksum length``, followed by its content.

FORMAT = 1
FORMAT_MOVED = 2
"""Of a store that is closed, because another one has its content: earlier versions refuse it, too."""

STORE = "store"
ENTRIES = "entries"
PREPARING = "preparing"
RETIRED = "retired"
STAGED = "aside"  # codespell:ignore
SESSIONS = "sessions"
MEMBERS = "members"
SNAPSHOT = "snapshot"
LOCK_SUFFIX = ".lock"
COPY_LOCK = "copying.lock"

KIND_STORE = "store"
KIND_ENTRY = "entry"
KIND_SEAL = "seal"
KIND_SNAPSHOT = "snapshot"
KIND_SESSION = "session"
KIND_SECRET = "secret"


class StoreDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of the file ``store``. Later formats may add fields; ``format`` is checked first."""

    format: int
    cluster_id: str
    first_folder: str
    moved_to: str = ""
    """The store that has the content now, as ``nilometer.coordination`` names it: brokers refuse this one."""


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
    return f"{broker_id}{LOCK_SUFFIX}"


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


# Checking a folder before it is used as a store, and creating a new store.
#
# A folder becomes a store when its description is linked into place; of several processes one succeeds, and
# the others read its description.

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "9p",
        "acfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.davfs2",
        "fuse.ceph",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gfs2",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "smb2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
    }
)
"""File systems that several machines may share. Locks and hard links have weaker guarantees there."""

STAGED_FILE_KEPT_MS = 3_600_000
"""Staged files younger than this may belong to a running writer (removing them would only fail its write)."""


class FolderGuard:
    def __init__(self, disk: Disk, root: str, staged: StagedFiles) -> None:
        self._disk = disk
        self._root = root
        self._staged = staged

    def open(
        self, token: str, cluster_id: str | None, fresh_cluster_id: str, *, create: bool
    ) -> StoreDescription:
        """Return the store's description; with ``create``, create the store if there is none. May block.

        ``cluster_id``: the id that the store must have; ``fresh_cluster_id``: the id of a new store if that
        is None. Raises StoreAbsent, StoreRefused, StoreDamaged, StoreUnavailable.
        """
        try:
            if not create and self._describe() is None:
                raise StoreAbsent(f"{self._root} contains no coordination store")
            refuse_network_mount(self._disk, self._root)
            self._make_folders()
            description = self._describe()
            if description is None:
                self._create(token, cluster_id or fresh_cluster_id)
                description = self._describe()
        except OSError as error:
            raise unavailable(f"opening the coordination store in {self._root}", error) from error
        if description is None:
            raise StoreDamaged(f"{self._root}/{STORE} was deleted while the store was opened")
        if description.moved_to:
            raise StoreMoved(f"local:{self._root}", description.moved_to)
        if cluster_id is not None and description.cluster_id != cluster_id:
            raise StoreRefused(
                f"{self._root} belongs to cluster {description.cluster_id}, but this broker to cluster "
                f"{cluster_id}; set nilometer.coordination to the folder of its own cluster, or log.dirs to "
                "an empty folder"
            )
        return description

    def check_is(self, opened: StoreDescription | None) -> None:
        """Check that the folder is still the store that was ``opened``. May block.

        Raises StoreDamaged if it was deleted, StoreRefused if it was replaced by another store.
        """
        try:
            found = self._describe()
        except OSError as error:
            raise unavailable(f"checking the coordination store in {self._root}", error) from error
        if found is None:
            raise StoreDamaged(
                f"the coordination store in {self._root} was deleted; restore it from a copy and restart"
            )
        if found.moved_to:
            raise StoreMoved(f"local:{self._root}", found.moved_to)
        if found != opened:
            raise StoreRefused(f"the coordination store in {self._root} was replaced by another one")

    def remove_stale_staged_files(self, wall_ms: int) -> None:
        """Remove the staged files of writers that died."""
        folder = posixpath.join(self._root, STAGED)
        for name in self._disk.list_directory(folder):
            path = posixpath.join(folder, name)
            try:
                old = wall_ms - self._disk.modified_ms(path) > STAGED_FILE_KEPT_MS
            except FileNotFoundError:
                continue
            if old:
                self._staged.discard(path)

    def _make_folders(self) -> None:
        self._disk.make_directories(self._root, private=True)
        folders = (STAGED, SESSIONS, PREPARING, RETIRED, ENTRIES)
        for name in folders:
            self._disk.make_directories(posixpath.join(self._root, name))
        sync_ancestors(self._disk, self._root)

    def _describe(self) -> StoreDescription | None:
        found = describe(self._disk, self._root)
        if found is not None:
            self._disk.sync_directory(self._root)  # a name must be durable before any process uses it
        return found

    def _create(self, token: str, cluster_id: str) -> None:
        """Create the store, unless another process is faster.

        The first entries folder's name has its creator's token, so that a slow second creator cannot create
        again a first folder that was retired long ago.
        """
        first = folder_name(0, token)
        description = StoreDescription(format=FORMAT, cluster_id=cluster_id, first_folder=first)
        staged_path = self._staged.new_path()
        self._staged.write(staged_path, wrap(KIND_STORE, msgspec.json.encode(description)))
        self._disk.make_directories(posixpath.join(self._root, PREPARING, first))
        self._disk.sync_directory(posixpath.join(self._root, PREPARING))
        self._disk.sync_directory(self._root)
        self._probe_links(staged_path)
        try:
            self._disk.link(staged_path, posixpath.join(self._root, STORE))
        except FileExistsError:
            self._remove_if_there(posixpath.join(self._root, PREPARING, first))
        finally:
            self._staged.discard(staged_path)

    def _remove_if_there(self, folder: str) -> None:
        try:
            self._disk.remove_tree(folder)
        except FileNotFoundError:
            pass  # a faster process has removed it already

    def _probe_links(self, file: str) -> None:
        """Raise StoreRefused if the file system has no hard links, or if a link may replace a file."""
        probe = self._staged.new_path()
        try:
            self._disk.link(file, probe)
            self._disk.link(file, probe)
        except FileExistsError:
            return
        except OSError as error:
            raise StoreRefused(f"the file system of {self._root} has no hard links ({error})") from error
        finally:
            self._staged.discard(probe)
        raise StoreRefused(f"the file system of {self._root} lets a link replace a file")


def refuse_network_mount(disk: Disk, root: str) -> None:
    """Raise StoreRefused if the folder is, or would be, on a file system that machines may share."""
    place = root
    while not disk.exists(place) and posixpath.dirname(place) not in ("", place):
        place = posixpath.dirname(place)
    kind = disk.file_system_type(place)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreRefused(
            f"{root} is on a network or shared file system ({kind}), whose "
            "locks are unreliable; put it on a local disk, or use "
            "nilometer.coordination=zookeeper://… across machines"
        )


def describe(disk: Disk, root: str) -> StoreDescription | None:
    """Return the description of the store in a folder; None if there is none. May block.

    Raises StoreRefused, StoreDamaged, OSError.
    """
    path = posixpath.join(root, STORE)
    try:
        kind, data = unwrap(path, disk.read_file(path))
    except FileNotFoundError:
        return None
    if kind != KIND_STORE:
        raise StoreRefused(f"{path} does not describe a coordination store")
    try:
        found = msgspec.json.decode(data)
        newest = FORMAT_MOVED if found.get("moved_to") else FORMAT
        if found["format"] > newest:
            raise StoreRefused(
                f"{root} has format {found['format']}, but this version reads formats up to "
                f"{newest}: upgrade nilometer"
            )
        return msgspec.convert(found, StoreDescription)
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
        raise StoreDamaged(f"{path} is not readable: {error}") from error


def write_description(disk: Disk, root: str, description: StoreDescription) -> None:
    """Make the description durable, in the format that it needs. May block. Raises OSError."""
    known = msgspec.structs.replace(description, format=FORMAT_MOVED if description.moved_to else FORMAT)
    content = wrap(KIND_STORE, msgspec.json.encode(known))
    disk.replace_file(posixpath.join(root, STORE), content)
