"""One line for each decision, with its cause; summaries where there would be thousands."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from nilometer.broker.decision_lines import LINES_MAX, PartitionDecision, log_partition_decisions

CAUSE = "the session of broker 1 ended"
MANY = 10_000

logger = logging.getLogger("nilometer.test.decisions")


class Capture(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def lines(self, level: int) -> list[str]:
        return [record.getMessage() for record in self.records if record.levelno == level]


@pytest.fixture
def capture() -> Iterator[Capture]:
    capture = Capture()
    logger.addHandler(capture)
    logger.propagate = False
    yield capture
    logger.removeHandler(capture)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def elections(count: int, made: list[int], level: int = logging.INFO) -> list[PartitionDecision]:
    def decision(number: int) -> PartitionDecision:
        def sentence() -> str:
            made.append(number)
            return f"clicks-{number}: broker 2 is elected leader"

        return PartitionDecision(
            "leader-elected", "clicks", number, "leaders are elected", CAUSE, sentence, {}, level
        )

    return [decision(number) for number in range(count)]


def test_each_decision_has_a_line_with_its_cause(capture: Capture) -> None:
    logger.setLevel(logging.INFO)
    log_partition_decisions(logger, elections(2, []))
    assert capture.lines(logging.INFO) == [
        f"clicks-{number}: broker 2 is elected leader, because {CAUSE}" for number in range(2)
    ]
    assert capture.records[1].__dict__["fields"] == {"topic": "clicks", "partition": 1, "cause": CAUSE}


def test_ten_thousand_at_once_have_one_line_and_no_sentence_is_made(capture: Capture) -> None:
    logger.setLevel(logging.INFO)
    made: list[int] = []
    log_partition_decisions(logger, elections(MANY, made))
    (line,) = capture.lines(logging.INFO)
    assert line == f"{MANY} leaders are elected: clicks ({MANY}); each is logged at DEBUG, because {CAUSE}"
    assert made == []


def test_at_debug_each_of_them_has_its_line_too(capture: Capture) -> None:
    logger.setLevel(logging.DEBUG)
    log_partition_decisions(logger, elections(LINES_MAX + 1, []))
    assert len(capture.lines(logging.INFO)) == 1
    assert len(capture.lines(logging.DEBUG)) == LINES_MAX + 1


def test_warnings_are_summarised_as_warnings(capture: Capture) -> None:
    logger.setLevel(logging.INFO)
    log_partition_decisions(logger, elections(MANY, [], logging.WARNING))
    assert len(capture.lines(logging.WARNING)) == 1


def test_what_is_below_the_level_makes_no_sentence(capture: Capture) -> None:
    logger.setLevel(logging.INFO)
    made: list[int] = []
    log_partition_decisions(logger, elections(MANY, made, logging.DEBUG))
    assert (capture.records, made) == ([], [])
