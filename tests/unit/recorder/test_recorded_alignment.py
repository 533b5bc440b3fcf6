"""Which recordings follow each other, and which connections are the two sides of one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from nilometer.recorder import tape as kinds
from nilometer.recorder.folder import digest_of_sources, new_recording
from nilometer.recorder.tape import Header, Tape, packed, signed, varint
from nilometer.recorder.tape_file import SlotFile
from nilometer.simulation.recorded_alignment import paired
from nilometer.simulation.recorded_cluster import RecordedCluster, RecordingFile

HOUR_MS = 3_600_000
Use = tuple[int, int, bool]
"""After how many milliseconds a connection is made, its port, and whether the broker made it."""


def recorded(
    folder: Path,
    broker: int,
    started_ms: int,
    monotonic_ms: int,
    boot: str = "a",
    *,
    lasts_ms: int = 1_000,
    uses: Sequence[Use] = (),
) -> RecordingFile:
    """A start of a broker, with the connections between broker 1, which makes them, and broker 2."""
    path, number = new_recording(str(folder), broker, started_ms, 1 << 40)
    header = Header(
        source=digest_of_sources(),
        version="",
        python="",
        settings={"node.id": str(broker), "log.dirs": f"/data/{broker}", "listeners": "PLAINTEXT://:1"},
        started_ms=started_ms,
        started_monotonic_ms=monotonic_ms,
        open_files_max=0,
        boot=boot,
        number=number,
    )
    tape, now_ms = Tape(SlotFile(path, header, 1 << 20)), 0

    def event(kind: int, at_ms: int, fields: bytes) -> None:
        nonlocal now_ms
        tape.write(bytes([kind]) + varint(0) + varint(signed(at_ms - now_ms) << 1) + fields)
        now_ms = at_ms

    event(kinds.TIME, monotonic_ms, b"")
    for number, (after_ms, port, is_own) in enumerate(uses, 1):
        at_ms = monotonic_ms + after_ms
        event(kinds.CONNECTION, at_ms, varint(number) + varint(1 << 1 | (not is_own)))
        near, far = ("10.0.0.1", port), ("10.0.0.2", 9092)
        names = {"sockname": near, "peername": far} if is_own else {"sockname": far, "peername": near}
        event(kinds.MADE, at_ms, varint(number) + packed({**names, "certificate": None, "has_tls": False}))
        event(kinds.LOST, at_ms + 1, varint(number) + packed(None))
    event(kinds.TIME, monotonic_ms + lasts_ms, b"")
    tape.end("tested")
    return RecordingFile(Path(path))


def order(files: Sequence[RecordingFile]) -> tuple[list[str], list[str]]:
    """The names of the starts in the order in which they are replayed, whatever that of ``files``."""
    found = list[tuple[list[str], list[str]]]()
    for some in itertools.permutations(files):
        with closing(RecordedCluster(some)) as cluster:
            found.append(([one.name for one in cluster.starts], cluster.doubts))
    assert all(each == found[0] for each in found)
    return found[0]


def test_starts_follow_each_other_although_the_clock_was_set_back_between_them(tmp_path: Path) -> None:
    first = recorded(tmp_path, 1, 10 * HOUR_MS, 5_000)
    second = recorded(tmp_path, 1, 9 * HOUR_MS, 7_000)
    third = recorded(tmp_path, 1, 9 * HOUR_MS + 5_000, 12_000)
    assert order([first, second, third]) == ([first.path.name, second.path.name, third.path.name], [])
    with closing(RecordedCluster([second, third, first])) as cluster:
        assert [one.next_ms - 10 * HOUR_MS for one in cluster.starts] == [0, 2_000, 7_000]


def test_starts_of_several_boots_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    first = recorded(tmp_path, 1, 10 * HOUR_MS, 900_000, "a")
    second = recorded(tmp_path, 1, 11 * HOUR_MS, 5_000, "b")
    third = recorded(tmp_path, 1, 11 * HOUR_MS + 60_000, 65_000, "b")
    assert order([first, second, third]) == ([first.path.name, second.path.name, third.path.name], [])


def test_it_is_said_that_the_order_of_two_starts_cannot_be_known(tmp_path: Path) -> None:
    first = recorded(tmp_path, 1, 10 * HOUR_MS, 900_000, "a")
    second = recorded(tmp_path, 1, 1 * HOUR_MS, 5_000, "b")  # without a battery, before NTP
    names, (doubt,) = order([first, second])
    assert names == [first.path.name, second.path.name]
    assert doubt.startswith(f"Broker 1: whether {names[0]} or {names[1]} was first cannot be known")
    other = tmp_path / "another"  # the folder was emptied: its numbers begin again
    third = recorded(other, 1, 12 * HOUR_MS, 5_000, "c")
    _, (doubt,) = order([first, third])
    assert "by their numbers (1 and 1) and their clocks it is not the same" in doubt


def test_a_start_that_began_while_another_went_on_does_not_take_its_place(tmp_path: Path) -> None:
    first = recorded(tmp_path, 1, HOUR_MS, 5_000, lasts_ms=60_000)
    second = recorded(tmp_path, 1, HOUR_MS + 10_000, 15_000)
    third = recorded(tmp_path, 1, HOUR_MS + 90_000, 95_000)
    with closing(RecordedCluster([third, second, first])) as cluster:
        assert [one.name for one in cluster.brokers] == [first.path.name, second.path.name]
        assert [one.name for one in cluster.starts] == [
            first.path.name,
            third.path.name,
            second.path.name,
        ]
        (doubt,) = cluster.doubts
        assert f"{second.path.name} began while {first.path.name} went on" in doubt


def test_a_copy_of_a_recording_is_not_another_start(tmp_path: Path) -> None:
    first = recorded(tmp_path, 1, HOUR_MS, 5_000)
    copy = tmp_path / "a copy.recording"
    copy.write_bytes(first.path.read_bytes())
    with closing(RecordedCluster([first, RecordingFile(copy)])) as cluster:
        assert [one.name for one in cluster.starts] == [first.path.name]
        assert cluster.doubts == [
            f"Broker 1: {first.path.name} and {copy.name} are of the same start: the longest is taken, "
            f"{first.path.name}."
        ]


def test_of_copies_of_a_start_the_longest_is_taken(tmp_path: Path) -> None:
    early, late = (tmp_path / name for name in ("early", "late"))
    of_start = [
        recorded(folder, 1, HOUR_MS, 5_000, lasts_ms=lasts_ms)
        for folder, lasts_ms in ((early, 1_000), (late, 3_000))
    ]
    for files in (of_start, of_start[::-1]):
        with closing(RecordedCluster(files)) as cluster:
            assert [one.file.path.parent for one in cluster.starts] == [late]
            assert len(cluster.doubts) == 1


def test_the_newest_recording_stays_although_the_clock_was_set_back(tmp_path: Path) -> None:
    first = recorded(tmp_path, 1, 10 * HOUR_MS, 5_000)
    second = recorded(tmp_path, 1, 9 * HOUR_MS, 7_000)
    _, number = new_recording(str(tmp_path), 1, 8 * HOUR_MS, bytes_max=1)
    assert [one.path.exists() for one in (first, second)] == [False, True]
    assert number == 3


def test_connections_of_one_address_and_port_are_kept_apart(tmp_path: Path) -> None:
    made = recorded(
        tmp_path, 1, HOUR_MS, 5_000, uses=[(100, 4711, True), (200, 4712, True), (300, 4711, True)]
    )
    # The first one of port 4711 was never accepted, and the clock of the other machine is behind.
    taken = recorded(tmp_path, 2, HOUR_MS - 50, 9_000, "b", uses=[(202, 4712, False), (302, 4711, False)])
    with closing(RecordedCluster([made, taken])) as cluster:
        one, two = cluster.brokers
        assert cluster.connection(one, 1) is None
        assert cluster.connection(one, 2) is cluster.connection(two, 1) is not None
        assert cluster.connection(one, 3) is cluster.connection(two, 2) is not None
        assert cluster.connection(one, 2) is not cluster.connection(one, 3)


def test_a_port_that_is_used_twice_makes_two_connections(tmp_path: Path) -> None:
    uses = [(100, 4711), (300, 4711)]
    made = recorded(tmp_path, 1, HOUR_MS, 5_000, uses=[(*use, True) for use in uses])
    taken = recorded(tmp_path, 2, HOUR_MS, 5_000, uses=[(*use, False) for use in uses])
    with closing(RecordedCluster([made, taken])) as cluster:
        one, two = cluster.brokers
        for number in (1, 2):
            assert cluster.connection(one, number) is cluster.connection(two, number) is not None
        assert cluster.connection(one, 1) is not cluster.connection(one, 2)


TIMES = st.lists(st.integers(0, 20), max_size=5).map(sorted)


@given(TIMES, TIMES)
def test_partners_are_those_whose_times_differ_the_least(these: list[int], those: list[int]) -> None:
    count = min(len(these), len(those))
    found = paired(these, those)
    assert len(found) == count
    for side in zip(*found, strict=True):
        assert list(side) == sorted(set(side))
    least = min(
        sum(abs(these[one] - those[other]) for one, other in zip(some, others, strict=True))
        for some in itertools.combinations(range(len(these)), count)
        for others in itertools.combinations(range(len(those)), count)
    )
    assert sum(abs(these[one] - those[other]) for one, other in found) == least


def test_a_header_of_before_has_neither_boot_nor_number() -> None:
    before: dict[str, object] = {"source": "", "version": "", "python": "", "settings": {}}
    before |= {"started_ms": 1, "started_monotonic_ms": 1, "open_files_max": 1}
    header = msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=Header)
    assert (header.boot, header.number) == ("", 0)
