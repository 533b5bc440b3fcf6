"""Reports: what is drawn follows from the columns; what is in the data stays text."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from nilometer.pipeline.run.run_report import Report, draw, write_report

START = datetime(2024, 5, 1)


class Frame:
    """As much of a DataFrame as a report asks of one."""

    def __init__(self, columns, rows):
        self.columns = columns
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
