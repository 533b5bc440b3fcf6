"""The fault that lets a replica break an invariant, where its class cannot be changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.replication.leader import LeaderRole
from nilometer.simulation import faults
from nilometer.simulation.faults import BrokenInvariants


class Fixed(LeaderRole):
    """A class whose instances have another layout, as that of a compiled module."""

    __slots__ = ("own",)

    def __init__(self) -> None:
        self.own = 1


def test_no_invariant_is_broken_where_the_class_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BrokenInvariants(lambda: 0.0)
    monkeypatch.setattr(faults, "LeaderRole", Fixed)
    partition = SimpleNamespace(replica=SimpleNamespace(role=Fixed()))
    node = SimpleNamespace(name="m", process=object(), partitions=[partition])
    said = broken.break_one(cast(Any, node), 0.5)
    assert said is not None and said.endswith("breaks no invariant: the modules are compiled")
    broken.look()
    assert broken.violations == []
    assert type(partition.replica.role) is Fixed
