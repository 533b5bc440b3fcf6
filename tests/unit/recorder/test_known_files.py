"""What a recording need not repeat: both sides know the same of every file, whatever happens to it."""

from __future__ import annotations

import sys
import threading

from hypothesis import given
from hypothesis import strategies as st

from nilometer.recorder.known_files import NOTHING_KNOWN, KnownFiles

FOLDER = "/logs"
PATHS = [f"{FOLDER}/a", f"{FOLDER}/b", f"{FOLDER}/t-0/c", f"{FOLDER}/.coordination/d", "/elsewhere/e"]

paths = st.sampled_from(PATHS)
change = st.one_of(
    st.tuples(st.just("open"), paths),
    st.tuples(st.just("append"), paths, st.binary(max_size=6)),
    st.tuples(st.just("write"), paths, st.integers(0, 12), st.binary(max_size=6)),
    st.tuples(st.just("truncate"), paths, st.integers(0, 12)),
    st.tuples(st.just("replace"), paths, st.binary(max_size=6)),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("remove"), paths),
    st.tuples(st.just("fail"), paths),
)


class Side:
    def __init__(self, keeps_content: bool, present: dict[str, bytes]) -> None:
        self.files = KnownFiles([FOLDER], keeps_content=keeps_content)
        self.disk = {path: bytearray(data) for path, data in present.items()}

    def play(self, kind: str, path: str, *rest: object) -> None:  # a case for each call
        known = self.files.get(path)
        match kind, rest:
            case "open", _:
                self.files.opened(path, len(self.disk.setdefault(path, bytearray())))
            case "append", (bytes(data),) if path in self.disk:
                self.files.opened(path, len(self.disk[path])).append([data])
                self.disk[path] += data
            case "write", (int(at), bytes(data)) if path in self.disk and at <= len(self.disk[path]):
                self.files.opened(path, len(self.disk[path])).write_at(at, data)
                self.disk[path][at : at + len(data)] = data
            case "truncate", (int(size),) if path in self.disk:
                self.files.opened(path, len(self.disk[path])).truncate(size)
                content = self.disk[path]
                del content[size:]
                content += bytes(size - len(content))
            case "replace", (bytes(data),):
                self.files.replaced(path, data)
                self.disk[path] = bytearray(data)
            case "rename", (str(target),) if path in self.disk and target != path:
                self.files.renamed(path, target)
                self.disk[target] = self.disk.pop(path)
            case "link", (str(target),) if path in self.disk and target not in self.disk:
                self.files.linked(path, target)
                self.disk[target] = self.disk[path]
            case "remove", _:
                self.files.removed(path)
                self.disk.pop(path, None)
            case "fail", _ if known is not None:
                known.forget()
            case _:
                pass


@given(st.lists(change, max_size=30), st.dictionaries(paths, st.binary(max_size=8)))
def test_what_is_known_is_what_the_file_has(
    changes: list[tuple[str, ...]], present: dict[str, bytes]
) -> None:
    recording, replay = Side(False, present), Side(True, present)
    for one in changes:
        recording.play(*one)
        replay.play(*one)
        for path, content in replay.disk.items():
            ours, theirs = replay.files.get(path), recording.files.get(path)
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert ours.known_from == theirs.known_from
                if ours.known_from != NOTHING_KNOWN:
                    assert ours.known_from <= len(content)
                    assert ours.read(ours.known_from, 100) == content[ours.known_from :]


def test_nothing_is_known_where_other_processes_write() -> None:
    files = KnownFiles([FOLDER], keeps_content=True)
    assert files.opened("/elsewhere/e", 0).known_from == NOTHING_KNOWN
    assert files.opened(f"{FOLDER}/.coordination/entries/1", 0).known_from == NOTHING_KNOWN


def test_a_renamed_folder_takes_its_files_along() -> None:
    files = KnownFiles([FOLDER], keeps_content=True)
    files.opened(f"{FOLDER}/t-0/00.log", 5).append([b"abc"])
    files.renamed(f"{FOLDER}/t-0", f"{FOLDER}/t-0.1-delete")
    assert files.get(f"{FOLDER}/t-0/00.log") is None
    moved = files.get(f"{FOLDER}/t-0.1-delete/00.log")
    assert moved is not None and moved.read(5, 10) == b"abc"


def test_threads_remove_and_open_files_at_once() -> None:
    files, failures = KnownFiles([FOLDER], keeps_content=False), list[BaseException]()
    for number in range(5_000):
        files.opened(f"{FOLDER}/kept-{number}/0.log", 0)

    def remove() -> None:
        try:
            for number in range(300):
                files.removed(f"{FOLDER}/gone-{number}")
                files.renamed(f"{FOLDER}/kept-{number}", f"{FOLDER}/gone-{number}")
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=remove)
        thread.start()
        number = 0
        while thread.is_alive():
            number += 1
            files.opened(f"{FOLDER}/new-{number % 1000}/0.log", 0)
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert files.get(f"{FOLDER}/gone-299/0.log") is not None
