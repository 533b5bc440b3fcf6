"""A file system in memory, for tests of ingest: names, reused inodes, a folder that can be unmounted."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from nilometer.client.ingest.found_files import FoundFile, Identity, Look, OpenFile, Stamp, is_rotation_name
from nilometer.client.ingest.source_files import HeldFiles

FOLDER = "/logs"
LOG = f"{FOLDER}/app.log"


@dataclass(eq=False)
class Inode:
    number: int
    born_ns: int
    content: bytearray = field(default_factory=bytearray)
    modified_ns: int = 0
    opened: int = 0
    """The number of open files of this inode; while there are any, its number is not reused."""


class ModelFile:
    """Implements ``OpenFile``."""

    def __init__(self, disk: ModelDisk, inode: Inode) -> None:
        self._disk = disk
        self.inode = inode
        self.identity: Identity = (disk.device, inode.number)
        inode.opened += 1

    def stamp(self) -> Stamp:
        return len(self.inode.content), self.inode.modified_ns

    def read_at(self, position: int, length: int) -> bytes:
        return bytes(self.inode.content[position : position + length])

    def birth_ns(self) -> int:
        return self.inode.born_ns

    def again(self) -> ModelFile:
        return ModelFile(self._disk, self.inode)

    def close(self) -> None:
        self.inode.opened -= 1
        assert self.inode.opened >= 0, "closed twice"


class ModelDisk:
    """The file system; its clock advances with every change."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.device = 1
        self.mounted = True
        self.now_ns = 1_000
        self._inodes: list[Inode] = []

    def create(self, path: str) -> Inode:
        self.now_ns += 1
        taken = {inode.number for inode in self.names.values()}
        taken |= {inode.number for inode in self._inodes if inode.opened}
        number = next(number for number in range(1, 1000) if number not in taken)
        inode = Inode(number, self.now_ns, modified_ns=self.now_ns)
        self._inodes.append(inode)
        self.names[path] = inode
        return inode

    def append(self, inode: Inode, data: bytes) -> None:
        self.now_ns += 1
        inode.content += data
        inode.modified_ns = self.now_ns

    def truncate(self, inode: Inode) -> None:
        self.now_ns += 1
        inode.content = bytearray()
        inode.modified_ns = self.now_ns

    def rename(self, path: str, target: str) -> None:
        self.names[target] = self.names.pop(path)


class ModelFiles:
    """Implements ``Files`` for one run of ingest."""

    def __init__(self, disk: ModelDisk, *, named: bool, follow: bool) -> None:
        self._disk = disk
        self._named = named
        self._follow = follow
        self._looks = 0
        self._held: HeldFiles = HeldFiles(self._open)

    def look(self, known: AbstractSet[Identity]) -> Look:
        self._looks += 1
        files = tuple(self._found(known)) if self._disk.mounted else ()
        asked = frozenset({LOG if self._named else FOLDER})
        look = Look(
            self._looks,
            files,
            named=frozenset({LOG}) if self._named else frozenset(),
            reached=asked if self._disk.mounted else frozenset(),
        )
        return self._held.on_look(look) if self._follow else look

    def _found(self, known: AbstractSet[Identity]) -> list[FoundFile]:
        inodes = {number for _, number in known}
        found: list[FoundFile] = []
        for path, inode in sorted(self._disk.names.items()):
            if self._named:
                asked_for = path == LOG
                if inode.number not in inodes and not is_rotation_name(path, LOG):
                    continue
            else:
                asked_for = not (self._follow and path.endswith(".gz"))
            size = len(inode.content)
            found.append(FoundFile(path, self._disk.device, inode.number, size, inode.modified_ns, asked_for))
        return found

    def _open(self, file: FoundFile) -> ModelFile:
        inode = self._disk.names.get(file.path) if self._disk.mounted else None
        if inode is None or (self._disk.device, inode.number) != file.identity:
            raise FileNotFoundError(file.path)
        return ModelFile(self._disk, inode)

    def unnamed(self, look: Look) -> list[FoundFile]:
        return self._held.unnamed(look)

    def open(self, file: FoundFile) -> OpenFile:
        return self._held.open(file)

    def birth_ns(self, file: FoundFile) -> int:
        held = self._held.birth_ns(file)
        if held is not None:
            return held
        inode = self._disk.names.get(file.path) if self._disk.mounted else None
        same = inode is not None and (self._disk.device, inode.number) == file.identity
        return inode.born_ns if inode is not None and same else 0

    def release(self, look: Look, keep: AbstractSet[Identity]) -> None:
        self._held.release(look, keep)

    def close(self) -> None:
        self._held.close()
