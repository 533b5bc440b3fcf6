"""A member's share session with one broker: epochs, what is fetched, what is acknowledged. Without I/O."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from nilometer.client.consumer.share_session import (
    ACKNOWLEDGEMENTS_MAX,
    AcknowledgedRecord,
    Outcome,
    SessionPlan,
    ShareFetchLimits,
    SharePartition,
    ShareSession,
    read_share_fetch,
    runs,
    share_acknowledge_request,
    share_fetch_request,
)
from nilometer.share.partition_events import AcknowledgeType, AcquireMode
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import api
from support.properties import examples

NONE = ErrorCode.none
ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)
TOPIC = UUID(int=7)
P0, P1 = SharePartition(TOPIC, 0), SharePartition(TOPIC, 1)


def of(offset: int, partition: SharePartition = P0) -> AcknowledgedRecord:
    return AcknowledgedRecord(partition, offset)


def opened(*partitions: SharePartition) -> ShareSession:
    session = ShareSession()
    assert session.on_answer(session.plan_fetch(partitions or (P0,)), NONE, {}) == []
    return session


def test_the_first_request_names_all_partitions_and_later_ones_what_has_changed():
    session = ShareSession()
    assert (session.is_open, session.can_fetch) == (False, True)
    first = session.plan_fetch([P0])
    assert (first.epoch, first.add, first.forget) == (0, (P0,), ())
    assert (session.is_open, session.can_fetch) == (False, False)
    session.on_answer(first, NONE, {})
    assert (session.is_open, session.can_fetch) == (True, True)
    plans = [session.plan_fetch(wanted) for wanted in ([P0], [P0, P1], [P1])]
    assert [(plan.epoch, plan.add, plan.forget) for plan in plans] == [
        (1, (), ()),
        (2, (P1,), ()),
        (3, (), (P0,)),
    ]


def test_requests_may_overlap_and_a_fetch_takes_acknowledgements_along():
    session = opened()
    waiting = session.plan_fetch([P0])
    session.acknowledge(of(3), ACCEPT)
    alone = session.plan_acknowledge()
    session.acknowledge(of(4), RELEASE)
    along = session.plan_fetch([P0])
    assert [plan.epoch for plan in (waiting, alone, along)] == [1, 2, 3]
    assert along.acknowledgements == {P0: {4: RELEASE}}
    assert session.on_answer(waiting, NONE, {}) == []
    assert session.on_answer(alone, NONE, {P0: NONE}) == [Outcome(of(3), ACCEPT, NONE)]
    refused = ErrorCode.invalid_record_state
    assert session.on_answer(along, NONE, {P0: refused}) == [Outcome(of(4), RELEASE, refused)]


def test_a_renewal_goes_alone_since_nothing_can_be_fetched_with_it():
    session = opened()
    session.acknowledge(of(1), RENEW)
    assert session.plan_fetch([P0]).acknowledgements == {}
    plan = session.plan_acknowledge()
    assert plan.renews and plan.acknowledgements == {P0: {1: RENEW}}


def test_an_end_replaces_a_renewal_that_was_not_sent():
    session = opened()
    session.acknowledge(of(1), RENEW)
    session.acknowledge(of(1), ACCEPT)
    assert session.plan_fetch([P0]).acknowledgements == {P0: {1: ACCEPT}}
    assert not session.has_acknowledgements


def test_after_an_error_of_the_session_the_next_request_begins_another():
    session = opened()
    number = session.number
    session.acknowledge(of(1), ACCEPT)
    failed, later = session.plan_fetch([P0]), session.plan_fetch([P0])
    lost = ErrorCode.share_session_not_found
    assert session.on_answer(failed, lost, {}) == [Outcome(of(1), ACCEPT, lost)]
    assert session.number == number + 1 and not session.is_open
    begun = session.plan_fetch([P0])
    assert (begun.epoch, begun.add) == (0, (P0,))
    assert session.on_answer(later, lost, {}) == [], "the error is of the session before"
    session.on_answer(begun, NONE, {})
    assert session.is_open


def test_what_waits_is_lost_with_the_connection():
    session = opened()
    session.acknowledge(of(1), ACCEPT)
    sent = session.plan_acknowledge()
    session.acknowledge(of(2, P1), REJECT)
    code = ErrorCode.network_exception
    assert session.on_lost(sent, code) == [
        Outcome(of(1), ACCEPT, code),
        Outcome(of(2, P1), REJECT, code),
    ]
    assert not session.has_acknowledgements and session.plan_fetch([P0]).epoch == 0


def test_the_end_of_a_session_takes_what_waits_along():
    session = opened()
    session.acknowledge(of(1), ACCEPT)
    plan = session.plan_end()
    assert (plan.epoch, plan.acknowledgements) == (-1, {P0: {1: ACCEPT}})
    assert not session.is_open
    assert session.on_answer(plan, NONE, {}) == [Outcome(of(1), ACCEPT, NONE)]


def test_a_request_has_a_bounded_number_of_acknowledgements():
    session = opened()
    for offset in range(ACKNOWLEDGEMENTS_MAX + 1):
        session.acknowledge(of(offset), ACCEPT)
    first, second = session.plan_acknowledge(), session.plan_acknowledge()
    assert len(first.acknowledgements[P0]) == ACKNOWLEDGEMENTS_MAX
    assert second.acknowledgements == {P0: {ACKNOWLEDGEMENTS_MAX: ACCEPT}}


def test_neighbours_of_one_type_are_one_batch():
    offsets = {5: ACCEPT, 3: ACCEPT, 4: ACCEPT, 6: RELEASE, 9: RELEASE}
    assert list(runs(offsets)) == [(3, 5, ACCEPT), (6, 6, RELEASE), (9, 9, RELEASE)]
    assert list(runs({})) == []


def test_requests_in_each_version():
    session = opened(P0)
    session.acknowledge(of(1), ACCEPT)
    plan = session.plan_fetch([P0, P1])
    limits = ShareFetchLimits(max_records=3, max_wait_ms=100)
    for version in (1, 2):
        request = share_fetch_request(api(ApiKey.SHARE_FETCH, version), "g", "m", plan, limits)
        assert (request.share_session_epoch, request.max_records) == (1, 3)
        [topic] = request.topics
        named = {part.partition_index: len(part.acknowledgement_batches) for part in topic.partitions}
        assert named == {0: 1, 1: 0}
        acknowledge = share_acknowledge_request(api(ApiKey.SHARE_ACKNOWLEDGE, version), "g", "m", plan)
        assert acknowledge.share_session_epoch == 1
    assert request.share_acquire_mode == AcquireMode.RECORD_LIMIT
    assert acknowledge.is_renew_ack is False


def test_a_response_is_read():
    codec = api(ApiKey.SHARE_FETCH, 2)
    part = codec.make(
        "PartitionData",
        partition_index=1,
        error_code=NONE,
        acknowledge_error_code=int(ErrorCode.invalid_record_state),
        acknowledge_error_message=None,
        current_leader=codec.make("LeaderIdAndEpoch", leader_id=0, leader_epoch=0),
        records=b"",
        acquired_records=(codec.make("AcquiredRecords", first_offset=4, last_offset=6, delivery_count=2),),
    )
    topic = codec.make("ShareFetchableTopicResponse", topic_id=TOPIC, partitions=(part,))

    class Response:
        responses = (topic,)

    [fetched], errors = read_share_fetch(Response())
    assert (fetched.partition, fetched.acquired) == (P1, ((4, 6, 2),))
    assert errors == {P1: ErrorCode.invalid_record_state}


class Played:
    """A session, what was acknowledged in it, and the outcomes."""

    def __init__(self) -> None:
        self.session = ShareSession()
        self.said: Counter[tuple[AcknowledgedRecord, AcknowledgeType]] = Counter()
        self.told: Counter[tuple[AcknowledgedRecord, AcknowledgeType]] = Counter()
        self.in_flight: list[SessionPlan] = []
        self.epoch = -1

    def take(self, outcomes: list[Outcome]) -> None:
        self.told.update((record, kind) for record, kind, _ in outcomes)

    def plan(self, plan: SessionPlan) -> None:
        assert plan.epoch == 0 or plan.epoch == self.epoch + 1
        assert plan.epoch > 0 or not plan.acknowledgements
        self.epoch = plan.epoch
        self.in_flight.append(plan)

    def play(self, step: int, number: int) -> None:
        session = self.session
        if step == 0:
            record = of(number)
            self.said[record, ACCEPT] += 1
            session.acknowledge(record, ACCEPT)
        elif step == 1 and session.can_fetch:
            self.plan(session.plan_fetch([P0]))
        elif step == 2 and session.is_open:
            self.plan(session.plan_acknowledge())
        elif step in (3, 4, 5) and self.in_flight:
            plan = self.in_flight.pop(0)
            if step == 3:
                self.take(session.on_answer(plan, NONE, {}))
            elif step == 4:
                self.take(session.on_answer(plan, ErrorCode.share_session_not_found, {}))
            else:
                self.take(session.on_lost(plan, ErrorCode.network_exception))


@examples(200)
@given(st.lists(st.integers(0, 5), max_size=60))
def test_each_acknowledgement_has_one_outcome(steps: list[int]):
    played = Played()
    for number, step in enumerate(steps):
        played.play(step, number)
    for plan in played.in_flight:
        played.take(played.session.on_answer(plan, NONE, {}))
    played.take(played.session.drop(ErrorCode.network_exception))
    assert played.told == played.said
