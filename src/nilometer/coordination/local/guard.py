"""Checking a folder before it is used as a store, and creating a new store.

A folder becomes a store when its description is linked into place; of several processes one succeeds, and the
others read its description.
"""

from __future__ import annotations

import posixpath

import msgspec

from nilometer.coordination.local import layout
from nilometer.coordination.local.layout import StagedFiles, StoreDescription, unavailable
from nilometer.coordination.store import StoreAbsent, StoreDamaged, StoreRefused
from nilometer.runtime import Disk

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
            self._refuse_network_mount()
            self._make_folders()
            description = self._describe()
            if description is None:
                self._create(token, cluster_id or fresh_cluster_id)
                description = self._describe()
        except OSError as error:
            raise unavailable(f"opening the coordination store in {self._root}", error) from error
        if description is None:
            raise StoreDamaged(f"{self._root}/{layout.STORE} was deleted while the store was opened")
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
        if found != opened:
            raise StoreRefused(f"the coordination store in {self._root} was replaced by another one")

    def remove_stale_staged_files(self, wall_ms: int) -> None:
        """Remove the staged files of writers that died."""
        folder = posixpath.join(self._root, layout.STAGED)
        for name in self._disk.list_directory(folder):
            path = posixpath.join(folder, name)
            try:
                old = wall_ms - self._disk.modified_ms(path) > STAGED_FILE_KEPT_MS
            except FileNotFoundError:
                continue
            if old:
                self._staged.discard(path)

    def _refuse_network_mount(self) -> None:
        place = self._root
        while not self._disk.exists(place) and posixpath.dirname(place) not in ("", place):
            place = posixpath.dirname(place)
        kind = self._disk.file_system_type(place)
        if kind in NETWORK_FILE_SYSTEMS:
            raise StoreRefused(
                f"{self._root} is on a network or shared file system ({kind}), whose "
                "locks are unreliable; put it on a local disk, or use "
                "nilometer.coordination=zookeeper://… across machines"
            )

    def _make_folders(self) -> None:
        self._disk.make_directories(self._root, private=True)
        folders = (layout.STAGED, layout.SESSIONS, layout.PREPARING, layout.RETIRED, layout.ENTRIES)
        for name in folders:
            self._disk.make_directories(posixpath.join(self._root, name))
        self._sync_ancestors()

    def _sync_ancestors(self) -> None:
        """Sync every parent folder: the path to the store must be as durable as its content."""
        folder: str = self._root
        while folder not in ("", "/"):
            folder = posixpath.dirname(folder)
            try:
                self._disk.sync_directory(folder or ".")
            except PermissionError:
                return  # another user's folder, so no broker created it

    def _describe(self) -> StoreDescription | None:
        path = posixpath.join(self._root, layout.STORE)
        try:
            kind, data = layout.unwrap(path, self._disk.read_file(path))
        except FileNotFoundError:
            return None
        if kind != layout.KIND_STORE:
            raise StoreRefused(f"{path} does not describe a coordination store")
        try:
            found = msgspec.json.decode(data)
            if found["format"] > layout.FORMAT:
                raise StoreRefused(
                    f"{self._root} has format {found['format']}, but this version reads formats up to "
                    f"{layout.FORMAT}: upgrade nilometer"
                )
            description = msgspec.convert(found, StoreDescription)
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError) as error:
            raise StoreDamaged(f"{path} is not readable: {error}") from error
        self._disk.sync_directory(self._root)  # a name must be durable before any process uses it
        return description

    def _create(self, token: str, cluster_id: str) -> None:
        """Create the store, unless another process is faster.

        The first entries folder's name has its creator's token, so that a slow second creator cannot create
        again a first folder that was retired long ago.
        """
        entries = posixpath.join(self._root, layout.ENTRIES)
        first = layout.folder_name(0, token)
        description = StoreDescription(format=layout.FORMAT, cluster_id=cluster_id, first_folder=first)
        staged_path = self._staged.new_path()
        self._staged.write(staged_path, layout.wrap(layout.KIND_STORE, msgspec.json.encode(description)))
        self._disk.make_directories(posixpath.join(self._root, layout.PREPARING, first))
        self._disk.sync_directory(posixpath.join(self._root, layout.PREPARING))
        self._disk.sync_directory(self._root)
        self._probe_links(staged_path)
        try:
            self._disk.link(staged_path, posixpath.join(self._root, layout.STORE))
        except FileExistsError:
            self._remove_if_there(posixpath.join(self._root, layout.PREPARING, first))
        finally:
            self._staged.discard(staged_path)
        self._disk.sync_directory(entries)

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
