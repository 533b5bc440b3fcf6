"""What a run says about its lines: errors, exit codes, and the account of its records."""

from __future__ import annotations

from typing import cast

import pytest

from nilometer.cli.pipelines.pipeline_run_command import (
    account_of_run,
    check_any_recognised,
    open_note,
    print_account,
    print_tally,
    rejected_text,
    too_many_text,
)
from nilometer.pipeline.account import Account, Fate
from nilometer.pipeline.batches import Done
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.formats.tally import Tally
from nilometer.pipeline.recognition import Formats, tally_of
from nilometer.pipeline.run.catalogue import SHIPPED
from nilometer.pipeline.run.runner import Job

JOB = Job("access", output="", bootstrap_servers="")


def counted(kinds: list[tuple[str, str, int]], lines: int, unparsed: int, blank: int) -> dict[str, object]:
    """What Spark counts of a batch."""
    items = [{"item": f"{form}\x01{source}", "count": count} for form, source, count in kinds]
    samples = {"sample0": {"source": "a", "line": "what"}, "sample1": None, "sample2": None}
    return {"lines": lines, "unparsed": unparsed, "blank": blank, "kinds": items, **samples}


def test_lines_are_counted_by_file():
    kinds = [("access", "a", 3), ("unparsed", "a", 1), ("order", "", 2), ("blank", "", 1)]
    listing = tally_of(counted(kinds, 7, 1, 1))
    numbers = [listing[one] for one in ("lines", "recognised", "blank", "unrecognised")]
    assert numbers == [7, 5, 1, 1]
    assert listing["samples"] == ["what"]
    assert {one["path"]: one["lines"] for one in listing["files"]} == {"a": 4, "": 3}


def test_more_files_than_are_counted_exactly_give_totals_without_files():
    listing = tally_of(counted([("access", "a", 90)], 100, 4, 1))
    numbers = [listing[one] for one in ("lines", "unrecognised", "blank", "recognised")]
    assert numbers == [100, 4, 1, 95]
    assert "(other files)" in [one["path"] for one in listing["files"]]


def test_nothing_recognised_is_an_error_that_names_the_formats_tried():
    tally = Tally()
    tally.add("a.log", "unparsed", 7)
    tally.add("a.log", "blank", 2)
    tally.add_sample("a.log", "zorp 12")
    with pytest.raises(PipelineError) as raised:
        check_any_recognised(tally, SHIPPED["activity"], JOB)
    for part in (
        "none of the 7 lines of access",
        "access, syslog",
        "json-access",
        "  zorp 12",
        "formats test",
    ):
        assert part in str(raised.value)
    own = Formats((("m.toml", '[[format]]\nname = "shop"\npattern = "x"'),))
    with pytest.raises(PipelineError, match=r"Tried: shop, access"):
        check_any_recognised(tally, SHIPPED["activity"], Job("m", "", "", formats=own))
    tally.add("b.log", "access")
    check_any_recognised(tally, SHIPPED["activity"], JOB)
    check_any_recognised(None, SHIPPED["burst"], JOB)


def test_the_lines_are_printed_by_file_with_samples(capsys):
    tally = Tally()
    for number in range(12):
        tally.add(f"file-{number}.log", "access", 3)
    tally.add("file-5.log", "unparsed", 9)
    tally.add_sample("file-5.log", "[red]not markup[/red]")
    print_tally(tally)
    said = capsys.readouterr().out
    assert "45 lines: 36 recognised, 0 blank, 9 of no known format (20.0%)" in said
    assert "... and 2 more files" in said
    assert "  [red]not markup[/red]" in said
    assert "9 of 45 lines (20.0%)" in too_many_text(tally, 5)


def test_the_account_of_a_run_is_said_with_its_reasons(capsys):
    began = Done(0, {}, {"orders": account(read=10, results=6, open=4)}, {}, None)
    totals = account(read=30, results=20, rejected=6, late=1, open=3)
    last = Done(1, {}, {"orders": totals}, {}, 1_714_557_600_000_000, {"rows have other properties": 2})
    said = account_of_run(began, last, "dead-letters")
    assert said is not None
    assert said.to_json()["run"]["orders"] == {
        "read": 20, "open_before": 4, "results": 14, "rejected": 6, "late": 1, "repeated": 0, "left_out": 0,
        "open": 3, "reasons": {"results": {"why": 14}, "rejected": {"why": 6}, "late": {"why": 1}},
    }  # fmt: skip
    print_account(said)
    lines = capsys.readouterr().out.splitlines()
    assert (
        "  orders: 4 open before + 20 read = 14 in the results + 6 rejected + 1 late + 3 still open" in lines
    )
    assert "  orders: 30 read = 20 in the results + 6 rejected + 1 late + 3 still open" in lines
    assert "    rejected: 6 why" in lines
    assert "  2 rows have other properties" in lines
    warning = rejected_text(said, 20)
    assert warning is not None
    assert "6 of 20 orders (30.0%) were rejected; --max-rejected is 20 %" in warning
    assert "topic dead-letters: 6 why" in warning
    assert rejected_text(said, 30) is None
    assert "3 records are still open" in open_note(said, finished=False)[0]
    assert "2024-05-01 10:00:00" in open_note(said, finished=False)[0]
    assert "--finish has written the results of 3 open" in open_note(said, finished=True)[0]
    assert account_of_run(None, None, "dead-letters") is None


def account(read: int, open: int, **became: int) -> Account:
    found = Account(read, open=open)
    for fate, records in became.items():
        found.add(cast(Fate, fate), "why", records)
    found.check("orders")
    return found
