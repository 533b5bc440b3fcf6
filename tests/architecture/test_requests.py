"""What docs/architecture.md says of the modules that a request executes is what it executes."""

from __future__ import annotations

from architecture.modules_of_requests import committed, executed

ABOUT = 2
"""By how many modules a request may differ from the table before the table is written again."""
WRITE = "PYTHONPATH=tests python -m architecture.modules_of_requests"


def test_the_table_has_the_modules_that_requests_execute() -> None:
    now = {name: len(modules) for name, modules in executed().items()}
    assert now.keys() == committed().keys() == {"Produce", "Fetch", "JoinGroup", "EndTxn"}
    assert not [name for name, count in committed().items() if abs(now[name] - count) > ABOUT], WRITE


def test_a_request_executes_its_handler_and_its_core() -> None:
    assert {"broker.groups.classic_groups", "groups.shard", "groups.classic_groups"} <= executed()[
        "JoinGroup"
    ]
    assert {"broker.produce", "replication.leader"} <= executed()["Produce"]
