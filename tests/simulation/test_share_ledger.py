"""The ledger of a share group accepts what is allowed, and names what is not."""

from __future__ import annotations

import pytest

from nilometer.simulation.checkers.share_groups import Fetch, Session, ShareLedger

P = "jobs-0"
LOCK_S = 10.0
LIMIT = 3


class Scenario:
    """One record, ``x`` at offset 7; leader epoch 4 unless said otherwise."""

    def __init__(self) -> None:
        self.ledger = ShareLedger(LIMIT, LOCK_S)
        self.a, self.b = Session("a", 1), Session("b", 1)

    def gives(
        self,
        session: Session,
        at_s: float,
        count: int = 1,
        *,
        sent_s: float | None = None,
        epochs: tuple[int, int] = (4, 4),
        value: str = "x",
    ) -> None:
        fetch = Fetch(session, (P,), at_s - 0.1 if sent_s is None else sent_s, {P: epochs[0]})
        self.ledger.fetches(fetch)
        self.ledger.delivered(fetch, P, 7, value, count, at_s, epochs[1])
        self.ledger.answered(fetch)

    def says(self, session: Session, what: str, at_s: float) -> None:
        self.ledger.acknowledges(session, P, 7)
        self.ledger.acknowledged(session, P, 7, what, at_s, at_s + 0.1)

    def found(self, *aborted: str, elections: int = 0) -> list[str]:
        return list(self.ledger.judge(lambda _: elections, aborted))

    def missing(self) -> list[str]:
        return list(self.ledger.missing([(P, "x")]))


@pytest.fixture
def at() -> Scenario:
    return Scenario()


@pytest.mark.parametrize("what", ["accepted", "rejected"])
def test_what_is_done_is_given_to_no_one(at: Scenario, what: str) -> None:
    at.gives(at.a, 1)
    at.says(at.a, what, 2)
    assert (at.found(), at.missing()) == ([], [])
    at.gives(at.b, 3, 2, sent_s=2.05)
    assert at.found() == [], "it was fetched before the response"
    at.gives(at.b, 4, 3)
    (finding,) = at.found()
    assert f"was {what}, and given to b later" in finding


def test_a_locked_record_is_given_to_no_one_else(at: Scenario) -> None:
    at.gives(at.a, 1)
    at.gives(at.b, 5, 2)
    assert at.found() == [], "a's session may be over"
    at.ledger.goes_on(at.a)
    (finding,) = at.found()
    assert "was locked by a until" in finding


def test_a_response_may_come_after_that_of_the_next_delivery(at: Scenario) -> None:
    at.gives(at.b, 12, 2)
    at.gives(at.a, 13, 1, sent_s=1)
    at.ledger.goes_on(at.b)
    assert at.found() == [], "a's lock was over when b got the record"
    at.gives(at.a, 14, 3)
    at.ledger.goes_on(at.b)
    (finding,) = at.found()
    assert "was locked by b until" in finding


@pytest.mark.parametrize("why", ["later", "released", "over", "elected", "elected meanwhile"])
def test_a_record_that_is_not_locked_any_more_may_be_given(at: Scenario, why: str) -> None:
    at.gives(at.a, 1, epochs=(3, 4) if why == "elected meanwhile" else (4, 4))
    if why == "released":
        at.ledger.acknowledges(at.a, P, 7)
    if why == "over":
        at.ledger.ends(at.a)
    at.gives(at.b, 12 if why == "later" else 5, 2, epochs=(5, 5) if why == "elected" else (4, 4))
    at.ledger.goes_on(at.a)
    assert at.found() == []


def test_a_renewed_lock_is_longer(at: Scenario) -> None:
    at.gives(at.a, 1)
    at.says(at.a, "renewed", 9)
    at.gives(at.b, 15, 2)
    at.ledger.goes_on(at.a)
    assert len(at.found()) == 1


def test_a_late_acknowledgement_is_not_taken(at: Scenario) -> None:
    at.gives(at.a, 1)
    at.says(at.a, "accepted", 13)
    (finding,) = at.found()
    assert "though its lock had ended" in finding


def test_what_may_be_archived_may_be_acknowledged_late(at: Scenario) -> None:
    at.gives(at.a, 1, LIMIT)
    at.says(at.a, "accepted", 13)
    assert at.found() == []


def test_the_limit_of_deliveries(at: Scenario) -> None:
    for number in range(LIMIT + 1):
        at.gives(at.a, 20 * number, min(number + 1, LIMIT))
    assert at.found(elections=1) == []
    (finding,) = at.found()
    assert "was delivered 4 times of 3" in finding
    at.gives(at.a, 100, LIMIT + 1)
    assert any("above the limit" in each for each in at.found(elections=9))


def test_an_election_forgets_two_deliveries_at_most(at: Scenario) -> None:
    for number in range(LIMIT + 3):
        assert at.found(elections=1) == []
        at.gives(at.a, 20 * number, min(number + 1, LIMIT))
    (finding,) = at.found(elections=1)
    assert "was delivered 6 times of 5" in finding
    assert at.found(elections=2) == []


def test_what_is_aborted_is_not_given(at: Scenario) -> None:
    at.gives(at.a, 1)
    (finding,) = at.found("x")
    assert "its transaction is aborted" in finding


def test_an_offset_has_one_record(at: Scenario) -> None:
    at.gives(at.a, 1)
    at.gives(at.a, 20, 2, value="y")
    assert len(at.found()) == 1


def test_the_start_does_not_go_back(at: Scenario) -> None:
    for start in (-1, 3, 3, 5):
        at.ledger.started(P, start)
    assert at.found() == []
    at.ledger.started(P, 4)
    assert at.found() == [f"share group: the start offset of {P} was 5, and is 4"]


def test_what_was_put_is_done_or_was_delivered_often_enough(at: Scenario) -> None:
    assert len(at.missing()) == 1, "it was given to no one"
    at.gives(at.a, 1)
    at.gives(at.a, 20, 2)
    assert len(at.missing()) == 1
    at.ledger.fetches(Fetch(at.b, (P,), 30, {}))
    assert at.missing() == [], "the response that was lost may have had it"


def test_an_acknowledgement_without_a_response_may_have_been_written(at: Scenario) -> None:
    at.gives(at.a, 1)
    at.ledger.maybe_done(P, 7)
    assert at.missing() == []
    at.gives(at.b, 20, 2)
    assert at.found() == []
    at.ledger.refused(P, 7)
    assert len(at.missing()) == 1
