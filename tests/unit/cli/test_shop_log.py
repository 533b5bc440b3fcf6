"""The demo's made-up access log: the same each time, and each line is one of an access log."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from nilometer.cli.demo import write_shop_log
from nilometer.cli.demo_check import judge


def test_the_shop_log_is_the_same_each_time_and_has_something_to_see(tmp_path: Path) -> None:
    first, second = write_shop_log(tmp_path / "a" / "log"), write_shop_log(tmp_path / "b" / "log")
    text = first.read_text(encoding="ascii")
    assert text == second.read_text(encoding="ascii")
    found = [judge(line, datetime.now(UTC)) for line in text.splitlines()]
    assert {one.format for one in found} == {"access"}
    labels = Counter(one.label for one in found)
    assert {"200", "201", "302", "404", "429", "503"} == labels.keys()
    assert labels["503"] > 5
    assert len({one.minute for one in found}) > 60
