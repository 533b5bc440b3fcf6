"""What the commands of the metadata log make, each decided when it is applied, alike on each replica."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.coordination.quorum import commands
from nilometer.coordination.quorum.commands import (
    Append,
    AppliedState,
    Claim,
    Command,
    End,
    Outcome,
    PutSecret,
    Register,
    Resign,
    SnapshotPart,
    decode,
    encode,
    snapshot_parts,
)
from nilometer.coordination.store import Entry, SessionInfo, SessionName, Snapshot, StoredSecret
from support.properties import examples

DONE, REFUSED, ENDED = Outcome.DONE, Outcome.REFUSED, Outcome.SESSION_ENDED
ONE, TWO = SessionName(1, 100), SessionName(2, 101)


def registered() -> AppliedState:
    """Brokers 1 and 2 have the sessions ONE and TWO."""
    state = AppliedState()
    assert state.apply(100, Register(1, "folder-1", b"first", "a")) is DONE
    assert state.apply(101, Register(2, "folder-2", b"second", "b")) is DONE
    return state


def test_sessions_have_the_offset_of_their_registration_as_incarnation():
    state = registered()
    assert state.sessions() == [SessionInfo(1, 100, b"first"), SessionInfo(2, 101, b"second")]
    assert state.is_live(ONE) and state.is_live(None) and not state.is_live(SessionName(1, 101))


def test_a_registration_of_another_folder_is_refused_while_the_session_is_live():
    state = registered()
    assert state.apply(102, Register(1, "folder-3", b"", "c")) is REFUSED
    assert state.apply(103, End(ONE)) is DONE
    assert state.apply(104, Register(1, "folder-3", b"third", "c")) is DONE
    assert state.sessions()[0] == SessionInfo(1, 104, b"third")
    assert state.apply(105, End(ONE)) is ENDED, "the end of one incarnation is no other's"


def test_the_same_folder_takes_its_session_over_and_the_former_one_has_ended():
    state = registered()
    state.apply(102, Claim(ONE))
    assert state.apply(103, Register(1, "folder-1", b"again", "c")) is DONE
    assert state.sessions()[0] == SessionInfo(1, 103, b"again")
    assert (state.is_live(ONE), state.controller) == (False, None)


def test_an_attempt_to_register_that_is_applied_twice_begins_one_session():
    state = registered()
    assert state.apply(102, Register(1, "folder-1", b"first", "a")) is DONE
    assert state.is_live(ONE)


def test_an_entry_is_appended_once_and_only_as_the_next_one():
    state = registered()
    assert state.apply(102, Append(ONE, 0, b"a")) is DONE
    assert state.apply(103, Append(TWO, 0, b"b")) is REFUSED
    assert state.apply(104, Append(TWO, 2, b"b")) is REFUSED
    assert state.apply(105, Append(None, 1, b"c")) is DONE
    assert state.entries(0, 10, 1000) == [Entry(0, b"a"), Entry(1, b"c")]
    state.apply(106, End(ONE))
    assert state.apply(107, Append(ONE, 2, b"d")) is ENDED
    assert state.next_number == 2


def test_a_read_is_limited_in_number_and_bytes_and_has_at_least_one_entry():
    state = AppliedState()
    for number in range(4):
        state.apply(number, Append(None, number, bytes(100)))
    assert [entry.number for entry in state.entries(0, 2, 1000)] == [0, 1]
    assert [entry.number for entry in state.entries(1, 9, 250)] == [1, 2]
    assert [entry.number for entry in state.entries(2, 9, 1)] == [2]
    assert state.entries(4, 9, 1000) == []


def test_the_controller_is_who_claimed_first_or_took_over_until_it_resigns_or_ends():
    state = registered()
    assert state.apply(102, Claim(ONE)) is DONE
    assert (state.apply(103, Claim(TWO)), state.apply(103, Claim(ONE))) == (REFUSED, DONE)
    assert state.controller == ONE
    assert state.apply(103, Claim(TWO, takes_over=True)) is DONE
    assert state.apply(104, Resign(ONE)) is REFUSED
    assert state.controller == TWO
    assert state.apply(105, Resign(TWO)) is DONE
    assert state.controller is None
    state.apply(106, Claim(TWO))
    assert state.apply(107, End(TWO)) is DONE
    assert state.controller is None
    assert state.apply(108, Claim(TWO)) is ENDED


def test_a_snapshot_replaces_the_entries_below_it_when_its_last_part_is_applied(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(commands, "SNAPSHOT_PART_BYTES", 3)
    state = registered()
    for number in range(4):
        state.apply(102 + number, Append(ONE, number, b"%d" % number))
    *parts, last = snapshot_parts(ONE, 3, b"12345678")
    assert [part.data for part in (*parts, last)] == [b"123", b"456", b"78"]
    assert [state.apply(110, part) for part in parts] == [DONE, DONE]
    assert (state.snapshot, state.first_number) == (None, 0)
    assert state.apply(112, last) is DONE
    assert state.snapshot == Snapshot(3, b"12345678")
    assert (state.first_number, state.next_number) == (3, 4)
    assert state.entries(3, 9, 1000) == [Entry(3, b"3")]
    assert state.apply(113, Append(ONE, 2, b"late")) is REFUSED
    assert state.apply(114, last) is REFUSED, "applied twice, it changes nothing"
    assert state.apply(115, snapshot_parts(ONE, 3, b"x")[0]) is REFUSED, "of the same number"
    assert state.apply(116, snapshot_parts(ONE, 5, b"x")[0]) is REFUSED, "of entries that do not exist"
    assert state.apply(117, snapshot_parts(ONE, 4, b"")[0]) is DONE
    assert state.snapshot == Snapshot(4, b"")


def test_parts_of_two_writers_are_not_mixed_and_a_gap_drops_them():
    state = registered()
    state.apply(102, Append(ONE, 0, b"a"))
    for session in (ONE, TWO):
        assert state.apply(103, SnapshotPart(session, 1, 0, b"12", is_last=False)) is DONE
    assert state.apply(105, SnapshotPart(ONE, 1, 3, b"4", is_last=True)) is REFUSED
    assert state.apply(106, SnapshotPart(ONE, 1, 2, b"3", is_last=True)) is REFUSED
    assert state.apply(107, SnapshotPart(TWO, 1, 2, b"3", is_last=True)) is DONE
    assert state.snapshot == Snapshot(1, b"123")


def test_a_writer_that_begins_again_or_ends_leaves_no_parts_behind():
    state = registered()
    state.apply(102, Append(ONE, 0, b"a"))
    state.apply(103, SnapshotPart(ONE, 1, 0, b"old", is_last=False))
    state.apply(104, SnapshotPart(ONE, 1, 0, b"new", is_last=False))
    empty = len(registered().to_bytes())
    assert state.apply(105, SnapshotPart(ONE, 1, 3, b"!", is_last=True)) is DONE
    assert state.snapshot == Snapshot(1, b"new!")
    state = registered()
    state.apply(102, Append(ONE, 0, b"a"))
    state.apply(103, SnapshotPart(TWO, 1, 0, bytes(1000), is_last=False))
    state.apply(104, End(TWO))
    assert len(state.to_bytes()) < empty + 100


def test_only_the_next_secret_is_put():
    state = registered()
    assert state.apply(102, PutSecret(ONE, 1, b"x")) is REFUSED
    assert state.apply(103, PutSecret(ONE, 0, b"x")) is DONE
    assert state.apply(104, PutSecret(TWO, 0, b"y")) is REFUSED
    assert state.apply(105, PutSecret(None, 1, b"z")) is DONE
    assert state.secret == StoredSecret(1, b"z")


NAMES = st.sampled_from(
    [None, *(SessionName(broker, offset) for broker in (1, 2) for offset in (0, 1, 2, 3))]
)
OWN = NAMES.filter(lambda name: name is not None)
COMMANDS = st.one_of(
    st.builds(
        Register, st.sampled_from([1, 2]), st.sampled_from("fg"), st.just(b"p"), st.sampled_from("abc")
    ),
    st.builds(End, OWN),
    st.builds(Claim, OWN, st.booleans()),
    st.builds(Resign, OWN),
    st.builds(Append, NAMES, st.integers(0, 3), st.binary(max_size=3)),
    st.builds(
        SnapshotPart, NAMES, st.integers(0, 3), st.integers(0, 2), st.binary(max_size=2), st.booleans()
    ),
    st.builds(PutSecret, NAMES, st.integers(0, 2), st.binary(max_size=2)),
)


@examples(100)
@given(st.lists(COMMANDS, max_size=30), st.integers(0, 30))
def test_a_replica_that_began_with_a_snapshot_decides_as_the_others(given_commands: list[Command], cut: int):
    one, other = AppliedState(), AppliedState()
    for offset, command in enumerate(given_commands):
        if offset == cut:
            other = AppliedState.from_bytes(other.to_bytes())
        assert other.apply(offset, decode(encode(command))) is one.apply(offset, command)
        assert one.to_bytes() == other.to_bytes()
        assert one.controller is None or one.is_live(one.controller)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa4type\xa3new", encode(End(ONE))[:-1]])
def test_a_damaged_record_is_an_error(data: bytes):
    with pytest.raises(msgspec.DecodeError):
        decode(data)
