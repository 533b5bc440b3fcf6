"""The model check finds what it must: each fault is planted in the real code, and has its shortest path.

A fault that no property noticed would mean that the model check proves less than it says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from nilometer.identifiers import Offset
from nilometer.replication import epochs as epochs_module
from nilometer.replication import leader as leader_module
from nilometer.replication.epochs import NO_DIVERGENCE
from nilometer.replication.follower import FetchResponse, FollowerRole
from nilometer.replication.followers import IsrMembership
from nilometer.replication.isr import IsrNegotiation, PendingShrinkIsr
from nilometer.replication.leader import LeaderRole
from nilometer.replication.replica import Replica
from nilometer.replication.shell_interface import FollowerFetch, TruncateTo
from nilometer.simulation.model_check import properties
from nilometer.simulation.model_check.explorer import Exploration
from nilometer.simulation.model_check.processes import SmallController, SmallImage
from nilometer.simulation.model_check.tables import Bounds
from nilometer.simulation.model_check.world import World
from nilometer.wire.errors import ErrorCode
from support.simulation.model_check_tally import explore

pytestmark = pytest.mark.interpreted

BREAKS_COMMITMENT = {properties.STRONG_ISR, properties.NEVER_WITHDRAWN, properties.NEVER_LOST}


def hunt(bounds: Bounds, controller: Any = None) -> Exploration:
    found = explore(World(bounds, controller), judge=properties.violation, states_max=300_000)
    assert found.violation is not None, f"nothing found in {found.states:,} states of {bounds}"
    print(f"{found.violation} ({len(found.counterexample)} steps, {found.states:,} states)")
    return found


def test_high_watermark_without_the_maximal_isr(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-497: a replica that is being added is not waited for."""

    def only_committed(membership: IsrMembership, remote: Any, log_end_offset: int, now_ms: int) -> bool:
        return remote.broker_id in membership._negotiation.state.committed.isr

    monkeypatch.setattr(IsrMembership, "counts", only_committed)
    assert hunt(Bounds(message_faults=0)).violation.sentence in BREAKS_COMMITMENT


def test_no_epoch_fence_on_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-320: a fetch sent under an older epoch is taken for progress under this one."""
    monkeypatch.setattr(leader_module, "check_leader_epoch", lambda asked, current: ErrorCode.none)
    found = hunt(Bounds(lag_expiries=0))
    assert found.violation.sentence in BREAKS_COMMITMENT | {"epochs only rise along a log"}


def test_expansion_below_the_epoch_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-7128: reaching the high watermark, which a new leader does not know yet, is enough to join."""
    original = IsrMembership.may_join

    def forgetting_the_epoch_start(
        membership: IsrMembership, remote: Any, high_watermark: Any, epoch_start_offset: int
    ) -> bool:
        return original(membership, remote, high_watermark, Offset(0))

    monkeypatch.setattr(IsrMembership, "may_join", forgetting_the_epoch_start)
    bounds = Bounds(
        brokers=3,
        values=1,
        leader_epochs=2,
        crashes=0,
        message_faults=0,
        keeps_delayed_messages=False,
    )
    assert hunt(bounds).violation.sentence in BREAKS_COMMITMENT


def test_truncation_before_the_role_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-13207: a diverging epoch that arrives late truncates any replica."""
    original = Replica.on_fetch_response

    def truncates_first(replica: Replica, fetch: FollowerFetch, answer: FetchResponse) -> Any:
        if answer.diverging != NO_DIVERGENCE:
            offset = epochs_module.truncation_offset(replica._log, answer.diverging)
            replica.role.high_watermark = min(replica.role.high_watermark, offset)
            return (TruncateTo(offset),)
        return original(replica, fetch, answer)

    monkeypatch.setattr(Replica, "on_fetch_response", truncates_first)
    found = hunt(Bounds(crashes=0))
    assert found.violation.sentence == "a leader's epoch chain reaches its own epoch"


def test_acknowledgement_before_the_append_is_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaderRole, "acks_all_outcome", lambda role, required: ErrorCode.none)
    assert hunt(Bounds(message_faults=0)).violation.sentence == properties.NEVER_LOST


def test_high_watermark_moves_under_min_isr(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-966, the last replica standing commits alone, and loses its tail."""
    monkeypatch.setattr(LeaderRole, "is_under_min_isr", property(lambda role: False))
    found = hunt(Bounds(min_insync_replicas=2, values=1, crashes=2, message_faults=0))
    assert found.violation.sentence in BREAKS_COMMITMENT


class ForgetsIncarnations(SmallController):
    """Accepts an AlterPartition for any incarnation of a broker."""

    def on_alter_partition(self, image: SmallImage, request: Any) -> Any:
        replicas = tuple((broker, image.broker_epochs[broker]) for broker, _ in request.new_isr)
        return super().on_alter_partition(image, replace(request, new_isr=replicas))


def test_stale_broker_epoch_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-903: a replica returns without its tail, and is put into the ISR for what its former incarnation
    had."""
    bounds = Bounds(
        min_insync_replicas=2, values=1, leader_epochs=3, crashes=2, lag_expiries=1, message_faults=0
    )
    assert hunt(bounds, ForgetsIncarnations(2, 2)).violation.sentence in BREAKS_COMMITMENT


class ObeysTheDeposed(SmallController):
    """Folds whatever won a number in the metadata log."""

    def on_stale_append(self, image: SmallImage, decided: SmallImage) -> SmallImage:
        return decided


def test_unfenced_controller_append() -> None:
    """A deposed controller's decision on its old image takes effect."""
    bounds = Bounds(values=1, crashes=1, lag_expiries=1, message_faults=0, controller_changes=1)
    found = hunt(bounds, ObeysTheDeposed(2, 1))
    assert found.violation.sentence in BREAKS_COMMITMENT | {properties.ONE_LEADER}


def test_last_fetched_epoch_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-595: the leader does not look for where the logs part."""
    monkeypatch.setattr(leader_module, "diverging_epoch", lambda log, offset, epoch: NO_DIVERGENCE)
    assert hunt(Bounds(message_faults=0, crashes=0)).violation.sentence in BREAKS_COMMITMENT


def test_pending_shrink_is_counted_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-497: who is being removed is no longer waited for, though the controller may still elect it."""
    original = IsrNegotiation.propose_shrink

    def early(negotiation: IsrNegotiation, members: Any) -> Any:
        request = original(negotiation, members)
        state = negotiation.state
        assert isinstance(state, PendingShrinkIsr)
        negotiation.state = replace(state, maximal=frozenset(members))
        return request

    monkeypatch.setattr(IsrNegotiation, "propose_shrink", early)
    assert hunt(Bounds(message_faults=0, crashes=0)).violation.sentence in BREAKS_COMMITMENT


def test_late_answers_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer to a fetch that was given up is taken for the answer to the one that replaced it."""
    original: Callable[..., Any] = FollowerRole.on_fetch_response

    def takes_any(role: FollowerRole, fetch: FollowerFetch, answer: FetchResponse) -> Any:
        if role.outstanding is not None and fetch.leader_epoch == role.leader_epoch:
            fetch = role.outstanding
        return original(role, fetch, answer)

    monkeypatch.setattr(FollowerRole, "on_fetch_response", takes_any)
    found = hunt(Bounds(crashes=0, lag_expiries=0, message_faults=2))
    assert found.violation.sentence in BREAKS_COMMITMENT | {properties.SAME_RECORD}
