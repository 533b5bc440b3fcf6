"""What a run says about its lines: errors, exit codes, and why totals do not add up."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from nilometer.cli.pipelines.pipeline_lines import (
    check_any_recognised,
    explanations,
    print_tally,
    too_many_text,
)
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.formats.tally import Tally
from nilometer.pipeline.recognition import Formats, tally_of
from nilometer.pipeline.run.catalogue import SHIPPED
from nilometer.pipeline.run.runner import Job

JOB = Job("access", output="", bootstrap_servers="")


class Observed(SimpleNamespace):
    """A row of observed metrics, as Spark gives it."""

    def asDict(self, recursive=False):
        return vars(self)


def observed(
    kinds: list[tuple[str, str, int]], lines: int, unparsed: int, blank: int, sample=None
) -> Observed:
    items = [{"item": f"{form}\x01{source}", "count": count} for form, source, count in kinds]
    return Observed(
        lines=lines, unparsed=unparsed, blank=blank, kinds=items, sample0=sample, sample1=None, sample2=sample
    )  # fmt: skip


def test_counts_of_several_inputs_add_up_by_file():
    first = observed([("access", "a", 3), ("unparsed", "a", 1)], 4, 1, 0, {"source": "a", "line": "what"})
    second = observed([("order", "", 2), ("blank", "", 1)], 3, 0, 1)
    listing = tally_of({"nilometer-lines-x": first, "nilometer-lines-y": second, "mine": None})
    assert listing is not None
    assert (listing["lines"], listing["recognised"], listing["blank"], listing["unrecognised"]) == (
        7,
        5,
        1,
        1,
    )
    assert listing["samples"] == ["what"]
    assert {one["path"]: one["lines"] for one in listing["files"]} == {"a": 4, "": 3}
    assert tally_of({"mine": first}) is None


def test_more_files_than_are_counted_exactly_give_totals_without_files():
    listing = tally_of({"nilometer-lines": observed([("access", "a", 90)], 100, 4, 1)})
    assert listing is not None
    assert (listing["lines"], listing["unrecognised"], listing["blank"], listing["recognised"]) == (
        100,
        4,
        1,
        95,
    )
    assert [one["path"] for one in listing["files"]] == ["(other files)"]


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
        check_any_recognised(tally, SHIPPED["metrics"], Job("m", "", "", formats=own))
    with pytest.raises(PipelineError, match="Tried: JSON objects"):
        check_any_recognised(tally, SHIPPED["metrics"], JOB)
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


def explained(accounted: int, last: dict, *, finished: bool = False) -> list[str]:
    tally = Tally()
    tally.add("", "access", 500)
    module = SimpleNamespace(accounted=lambda spark, output: accounted, OPEN=("requests", "sessions"))
    given = {"open": 0, "late": 0, "event_time_watermark": "2024-05-01T10:00:00+00:00", **last}
    return explanations(None, module, "out", tally, json.loads(json.dumps(given)), finished=finished)  # pyright: ignore[reportArgumentType]


def test_totals_that_do_not_add_up_explain_themselves():
    (note,) = explained(294, {"open": 68})
    assert note.startswith("206 of 500 requests are in none of the tables: 68 sessions are still open, until")
    assert "2024-05-01T10:00:00" in note
    assert "--finish closes them" in note
    assert explained(500, {}) == []
    assert "--finish has written the 68 open sessions" in explained(500, {"open": 68}, finished=True)[0]
    assert "came after the watermark" in explained(490, {"late": 3})[1]
