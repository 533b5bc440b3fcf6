"""What a broker counts of the changes of partitions in the metadata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.control.cluster_changes import ClusterChanges


def state(leader: int, *isr: int) -> SimpleNamespace:
    return SimpleNamespace(leader=leader, has_leader=leader >= 0, isr=isr)


@pytest.mark.parametrize(
    ("before", "after", "elections", "shrinks", "expands"),
    [
        (state(1, 1, 2), state(2, 2), 1, 0, 0),
        (state(-1, 2), state(2, 2), 1, 0, 0),
        (state(2, 2), state(-1, 2), 0, 0, 0),
        (state(1, 1, 2), state(1, 1), 0, 1, 0),
        (state(1, 1), state(1, 1, 2), 0, 0, 1),
        (state(1, 1, 2), state(1, 1, 3), 0, 1, 1),
        (None, state(1, 1), 0, 0, 0),
        (state(1, 1), None, 0, 0, 0),
    ],
)
def test_an_election_is_of_another_leader_and_a_leader_counts_the_changes_of_its_isr(
    before: object, after: object, elections: int, shrinks: int, expands: int
) -> None:
    controller = SimpleNamespace(is_active=True, decision_began_us=0)
    session = SimpleNamespace(is_registered=True)
    changes = ClusterChanges(1, cast(Any, session), cast(Any, controller), lambda: 0)
    image = SimpleNamespace(unclean_elections=0, last_known_elections=0)
    changes.on_delta(cast(Any, SimpleNamespace(partitions={0: (before, after)})), cast(Any, image))
    assert (changes.elections, changes.isr_shrinks, changes.isr_expands) == (elections, shrinks, expands)
