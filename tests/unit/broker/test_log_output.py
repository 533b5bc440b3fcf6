"""The broker's own log: its form, its level by logger, and a file that does not grow beyond its bound."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nilometer.broker import process
from nilometer.broker.process import (
    LINES_PER_SECOND,
    BoundedLines,
    BoundedMessages,
    JsonFormatter,
    bounded_log_file,
    configure_log,
)
from nilometer.broker.settings.config import BrokerConfig
from nilometer.config import ConfigError

MAX_BYTES, FILES = 1_000, 3


@contextmanager
def bare_root() -> Iterator[None]:
    """The root logger without handlers (pytest has some), put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        yield
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.getLogger("nilometer.test").setLevel(logging.NOTSET)


def config(**settings: str) -> BrokerConfig:
    return BrokerConfig(
        {"node.id": "7", **{f"nilometer.log.{key.replace('_', '.')}": text for key, text in settings.items()}}
    )


def test_a_line_of_json_has_the_decision_and_its_cause() -> None:
    record = logging.makeLogRecord(
        {
            "name": "nilometer.broker.controller",
            "levelname": "INFO",
            "msg": "clicks-%d: …",
            "args": (0,),
            "event": "leader-elected",
            "fields": {"topic": "clicks", "isr": (1, 2)},
            "created": 0.5,
        }
    )
    assert json.loads(JsonFormatter(7).format(record)) == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "INFO",
        "broker": 7,
        "logger": "nilometer.broker.controller",
        "message": "clicks-0: …",
        "event": "leader-elected",
        "fields": {"topic": "clicks", "isr": [1, 2]},
    }


def test_an_exception_stays_in_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info()})
    (line,) = JsonFormatter(1).format(record).splitlines()
    assert "ValueError: two\nlines" in json.loads(line)["exception"]


def test_levels_are_those_of_their_loggers(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    settings = config(level="WARN,nilometer.test=DEBUG", file=str(path)).log
    with bare_root():
        configure_log(settings, 7)
        logging.getLogger("nilometer.other").info("hidden")
        logging.getLogger("nilometer.other").warning("seen")
        logging.getLogger("nilometer.test").debug("seen too")
    assert [line.partition("] ")[2] for line in path.read_text().splitlines()] == ["seen", "seen too"]


@pytest.mark.parametrize("level", ["LOUD", "=DEBUG", "nilometer.broker=", "nilometer.broker=loud"])
def test_a_level_that_is_none_is_refused_by_name(level: str) -> None:
    with pytest.raises(ConfigError, match=r"nilometer\.log\.level"):
        config(level=level)


def test_a_file_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nilometer\.log\.file.*No such file or directory"):
        configure_log(config(file=str(tmp_path / "none" / "broker.log")).log, 7)


def test_the_files_are_bounded_and_standard_error_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor stands for standard error: it was opened on the file by what started the broker."""
    path = tmp_path / "broker.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    monkeypatch.setattr(process, "STANDARD_STREAMS", (descriptor,))
    handler = bounded_log_file(str(path), MAX_BYTES, FILES)
    try:
        for number in range(200):
            handler.emit(logging.makeLogRecord({"msg": f"line {number} {'.' * 50}"}))
            os.write(descriptor, b"written past the log\n")
    finally:
        handler.close()
        os.close(descriptor)
    found = sorted(tmp_path.iterdir())
    assert [one.name for one in found] == ["broker.log", "broker.log.1", "broker.log.2"]
    assert all(one.stat().st_size <= MAX_BYTES + 100 for one in found)
    assert path.read_text().endswith("written past the log\n"), "it is in the newest file"
    assert "line 199" in path.read_text()


def test_a_deleted_file_is_begun_again_at_its_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broker.log"
    handler = bounded_log_file(str(path), MAX_BYTES, FILES)
    path.unlink()
    for number in range(50):
        handler.emit(logging.makeLogRecord({"msg": f"line {number} {'.' * 50}"}))
    handler.close()
    assert "line 49" in path.read_text()
    assert not capsys.readouterr().err, "no line is lost"


def test_names_that_clients_choose_do_not_fill_the_log() -> None:
    name = "x" * 32_000
    record = logging.LogRecord(
        "n", logging.INFO, "f", 1, "%s rebalances, because %s", ("Group g", name), None
    )
    vars(record)["fields"] = {"group": name, "generation": 3}
    assert BoundedMessages().filter(record)
    assert record.getMessage().startswith("Group g rebalances, because xxx")
    assert record.getMessage().endswith("x… (30028 more characters)")
    assert vars(record)["fields"] == {"group": "x" * 500 + "… (31500 more characters)", "generation": 3}
    short = logging.LogRecord("n", logging.INFO, "f", 1, "%d %%", (7,), None)
    assert BoundedMessages().filter(short)
    assert short.getMessage() == "7 %", "formatted once"


def test_lines_above_the_bound_of_a_second_are_left_out_and_counted() -> None:
    bounded = BoundedLines("connections")

    def written(second: float) -> str | None:
        about = {"msg": "closed %d", "args": (7,), "created": second, "levelno": logging.INFO}
        record = logging.makeLogRecord(about)
        return record.getMessage() if bounded.filter(record) else None

    lines = [written(1.5) for _ in range(LINES_PER_SECOND + 3)]
    assert lines == ["closed 7"] * LINES_PER_SECOND + [None] * 3
    assert written(2.1) == "3 lines about connections were left out. closed 7"
    assert written(2.9) == "closed 7"


def test_warnings_about_groups_are_always_written() -> None:
    bounded = BoundedLines("groups")

    def is_written(level: int) -> bool:
        return bounded.filter(logging.makeLogRecord({"msg": "g", "created": 1.5, "levelno": level}))

    written = [is_written(logging.INFO) for _ in range(LINES_PER_SECOND + 1)]
    assert written == [True] * LINES_PER_SECOND + [False]
    assert is_written(logging.WARNING)
