"""Reports: what is drawn follows from the columns; what is in the data stays text."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pytest

from nilometer.pipeline.account import Account
from nilometer.pipeline.batches import Done
from nilometer.pipeline.formats.tally import Tally
from nilometer.pipeline.run.run_record import RunFolder
from nilometer.pipeline.run.run_report import Entry, Report, draw, index_page, with_gaps, write_report

START = datetime(2024, 5, 1)


class Frame:
    """As much of a DataFrame as a report asks of one."""

    def __init__(self, columns, rows):
        self.columns = columns
        self.dtypes = [(name, "string") for name in columns]
        self._rows = rows

    def limit(self, count):
        return Frame(self.columns, self._rows[:count])

    def collect(self):
        return self._rows


def test_times_make_lines_names_make_bars_and_numbers_make_columns():
    hours = [(START + timedelta(hours=n), n, None if n == 3 else 10 - n) for n in range(10)]
    lines = draw(["hour", "views", "errors"], hours)
    assert "views" in lines
    assert "errors" in lines
    assert 'id="line2d_' in lines
    bars = draw(["path", "views"], [("/a", 5), ("/b", 3)])
    assert "/a" in bars
    assert bars.count('id="patch_') > draw(["path", "views"], [("/a", 5)]).count('id="patch_')
    assert draw(["minutes", "payments"], [(0, 5), (5, 3)]).startswith("<svg")


@pytest.mark.parametrize(
    "times", [[datetime.min], [datetime.min, START], [datetime.min, datetime.max], [datetime.max]], ids=str
)
def test_times_are_drawn_up_to_the_first_and_the_last_that_there_are(times):
    assert 'id="line2d_' in draw(["minute", "count"], [(one, 1) for one in times])


def test_no_line_is_drawn_across_times_without_data():
    minute = timedelta(minutes=1)
    rows = [(START + n * minute, n) for n in (0, 1, 2, 3, 9, 10)]
    assert with_gaps(rows) == [*rows[:4], (START + 4 * minute, None), *rows[4:]]
    uneven = [(START + n * minute, n) for n in (0, 1, 5, 20)]
    assert with_gaps(uneven) == uneven
    assert with_gaps([("/a", 5), ("/b", 3), ("/c", 1)]) == [("/a", 5), ("/b", 3), ("/c", 1)]


def progress_of(batch: int, unrecognised: int = 0) -> dict:
    return {
        "batch_id": batch, "at": f"2024-05-01T12:00:0{batch}+00:00",
        "lag": 0, "rows": 5, "rows_per_second": 1.0,
        "tally": {"unrecognised": unrecognised}, "accounts": {"": {"late": 2, "rejected": 0}},
        "end_offsets": {"lines": {"0": 7, "1": 1_234}},
        "event_time_watermark": "2024-05-01T10:00:00+00:00",
    }  # fmt: skip


def text_of_report(tmp_path, progress, tally=None, done=None) -> str:
    report = Report("logs", "Lines", {}, {}, progress, tally, ["lines"], done)
    write_report(report, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text()


def test_a_report_has_headline_figures_topic_offsets_times_and_lines_of_no_format(tmp_path):
    tally = Tally()
    tally.add("/var/log/a.log", "access", 900)
    tally.add("/var/log/b.log", "unparsed", 1_100)
    tally.add_sample("/var/log/b.log", "<b>what is this</b>")
    account = Account(read=10, open=3)
    account.add("results", "in a table", 3)
    account.add("late", "after <its> window", 4)
    done = Done(1, {}, {"lines": account}, {}, None, {"rows have other properties": 2})
    text = text_of_report(tmp_path, [progress_of(0), progress_of(1, 3)], tally, done)
    for part in (
        "<b>10</b>records read", "<b>900</b>lines recognised", "<b>1,100</b>of no format (55.0%)",
        "<b>4</b>late", "<b>3</b>still open", "<b>3</b>in the results", "Account of all runs",
        "after &lt;its&gt; window", "rows have other properties",
        "topic lines up to offsets 0: 7, 1: 1,234", "from 2024-05-01T12:00:00",
        "Event-time watermark: 2024-05-01T10:00:00", "/var/log/b.log", "&lt;b&gt;what is this",
        "Batches over time", "of no format</text>",
    ):  # fmt: skip
        assert part in text, part


def test_a_run_of_one_batch_has_no_trend(tmp_path):
    text = text_of_report(tmp_path, [progress_of(0)])
    assert "Batches over time" not in text
    assert "records read" in text


def test_the_index_links_the_reports_of_several_pipelines(tmp_path):
    tally = Tally()
    tally.add("", "access", 3)
    tally.add("", "unparsed")
    record = RunFolder(tmp_path, "logs").begin(["a<b"], "out")
    page = index_page([Entry("logs", "logs/report.html", record, tally), Entry("x&y", "x", None, None)])
    for part in ('<a href="logs/report.html">logs</a>', "a&lt;b", "1 (25.0%)", "x&amp;y", "running"):
        assert part in page, part


def test_the_same_data_gives_the_same_page(tmp_path):
    rows = [("/a", 5), ("/b", 3)]
    assert draw(["path", "views"], rows) == draw(["path", "views"], rows)


def test_data_is_never_markup_in_the_page(tmp_path):
    evil = '<script>alert("$x^2$")</script>'
    frame = Frame(["path", "views"], [(evil, 5), ("/b", 1_234)])
    page = Report(
        name="activity",
        summary="Sessions & views",
        tables={"Top <b>": frame},
        charts={"Top": frame, "Nothing": Frame(["path", "views"], [])},
        progress=[
            {"at": "2024-05-01T12:00:00+00:00", "lag": 10, "rows": 5, "rows_per_second": 2.5},
            {"at": "2024-05-01T12:00:01+00:00", "lag": 0, "rows": 10, "rows_per_second": 10.0},
        ],
    )
    path = tmp_path / "deep" / "report.html"
    write_report(page, path)
    text = path.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "Sessions &amp; views" in text
    assert "1,234" in text
    assert "Nothing" not in text
    assert re.search(r"lag, records", text)
    assert not re.search(r"(src|href)=.https?:", text)
