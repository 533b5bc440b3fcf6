"""The states of a classic group, and which may follow which (SPEC C-4).

::

    Empty               ← PreparingRebalance
    PreparingRebalance  ← Empty, CompletingRebalance, Stable
    CompletingRebalance ← PreparingRebalance
    Stable              ← CompletingRebalance
    Dead                ← all

- *Empty*: no members; there may be offsets. The first state of every group.
- *PreparingRebalance*: members must join (again); each JoinGroup waits for the others.
- *CompletingRebalance*: the generation's members are known; each SyncGroup waits for the leader's.
- *Stable*: every member has its assignment, or may fetch it with SyncGroup.
- *Dead*: deleted, expired, turned into a consumer group, or moved to another coordinator. This state is
  final, and the group is not kept.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class ClassicGroupState(Enum):
    """The state, with its name in responses to clients."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


VALID_PREVIOUS: Final[dict[ClassicGroupState, frozenset[ClassicGroupState]]] = {
    ClassicGroupState.EMPTY: frozenset({ClassicGroupState.PREPARING_REBALANCE}),
    ClassicGroupState.PREPARING_REBALANCE: frozenset(
        {ClassicGroupState.EMPTY, ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.STABLE}
    ),
    ClassicGroupState.COMPLETING_REBALANCE: frozenset({ClassicGroupState.PREPARING_REBALANCE}),
    ClassicGroupState.STABLE: frozenset({ClassicGroupState.COMPLETING_REBALANCE}),
    ClassicGroupState.DEAD: frozenset(ClassicGroupState),
}
