"""Share sessions: epochs, what a request adds and removes, who may have how many."""

from __future__ import annotations

import pytest

from nilometer.identifiers import TopicId, TopicIdPartition
from nilometer.share.sessions import (
    EPOCH_MAX,
    FINAL_EPOCH,
    PARTITIONS_MAX,
    MemberKey,
    ShareSessions,
)
from nilometer.wire.errors import ErrorCode, KafkaError

MEMBER, OTHER = MemberKey("g", "a"), MemberKey("g", "b")
HERE, THERE = object(), object()


def parts(*numbers: int) -> list[TopicIdPartition]:
    return [TopicIdPartition(TopicId("t"), number) for number in numbers]


def refused(
    sessions: ShareSessions,
    epoch: int,
    *,
    member: MemberKey = MEMBER,
    added: list[TopicIdPartition] | None = None,
) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        sessions.begin(member, epoch, HERE, added or [], [])
    return error.value.code


def test_a_session_is_continued_with_the_next_epoch_and_what_has_changed() -> None:
    sessions = ShareSessions(10)
    session, replaced = sessions.begin(MEMBER, 0, HERE, parts(0, 1, 2), [])
    assert replaced is None and list(session.partitions) == parts(0, 1, 2)
    again, _ = sessions.begin(MEMBER, 1, HERE, parts(3), parts(1))
    assert again is session and list(session.partitions) == parts(0, 2, 3)
    assert sessions.of(MEMBER, 2, HERE) is session
    assert refused(sessions, 2) is ErrorCode.invalid_share_session_epoch
    assert refused(sessions, 4) is ErrorCode.invalid_share_session_epoch
    sessions.begin(MEMBER, 3, HERE, [], [])


def test_the_epoch_after_the_highest_is_one() -> None:
    sessions = ShareSessions(10)
    session, _ = sessions.begin(MEMBER, 0, HERE, parts(0), [])
    session.epoch = EPOCH_MAX
    assert refused(sessions, 2) is ErrorCode.invalid_share_session_epoch
    sessions.begin(MEMBER, 1, HERE, [], [])


def test_without_a_session_only_epoch_zero_is_taken() -> None:
    sessions = ShareSessions(10)
    for epoch in (FINAL_EPOCH, 1):
        assert refused(sessions, epoch) is ErrorCode.share_session_not_found
        with pytest.raises(KafkaError):
            sessions.of(MEMBER, epoch, HERE)


def test_a_new_session_takes_the_place_of_the_members_earlier_one() -> None:
    sessions = ShareSessions(1)
    first, _ = sessions.begin(MEMBER, 0, HERE, parts(0), [])
    second, replaced = sessions.begin(MEMBER, 0, THERE, parts(1), [])
    assert replaced is first and second is not first and len(sessions) == 1
    assert sessions.of_connection(HERE) == [] and sessions.of_connection(THERE) == [second]


def test_the_final_epoch_leaves_the_session_to_its_caller() -> None:
    sessions = ShareSessions(10)
    session, _ = sessions.begin(MEMBER, 0, HERE, parts(0), [])
    last, _ = sessions.begin(MEMBER, FINAL_EPOCH, HERE, [], [])
    assert last is session and len(sessions) == 1
    sessions.end(session)
    sessions.end(session)
    assert len(sessions) == 0 and refused(sessions, 1) is ErrorCode.share_session_not_found


def test_a_session_belongs_to_the_connection_of_its_newest_request() -> None:
    sessions = ShareSessions(10)
    session, _ = sessions.begin(MEMBER, 0, HERE, parts(0), [])
    other, _ = sessions.begin(OTHER, 0, HERE, parts(0), [])
    assert sessions.of_connection(HERE) == [session, other]
    sessions.of(MEMBER, 1, THERE)
    assert sessions.of_connection(HERE) == [other] and sessions.of_connection(THERE) == [session]


def test_there_are_no_more_sessions_than_slots() -> None:
    sessions = ShareSessions(1)
    session, _ = sessions.begin(MEMBER, 0, HERE, parts(0), [])
    assert refused(sessions, 0, member=OTHER) is ErrorCode.share_session_limit_reached
    sessions.end(session)
    sessions.begin(OTHER, 0, HERE, parts(0), [])


def test_a_session_has_no_more_partitions_than_its_limit() -> None:
    sessions = ShareSessions(10)
    too_many = parts(*range(PARTITIONS_MAX + 1))
    assert refused(sessions, 0, added=too_many) is ErrorCode.share_session_limit_reached
    assert len(sessions) == 0
    sessions.begin(MEMBER, 0, HERE, too_many[:-1], [])
    assert refused(sessions, 1, added=parts(PARTITIONS_MAX + 7)) is ErrorCode.share_session_limit_reached


def test_who_was_served_is_read_last() -> None:
    session, _ = ShareSessions(10).begin(MEMBER, 0, HERE, parts(0, 1, 2), [])
    session.rotate(parts(0, 7))
    assert list(session.partitions) == parts(1, 2, 0)
