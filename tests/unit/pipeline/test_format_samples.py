"""The built-in formats on lines that real programs wrote, and on the lines of the `logs` pipeline's tests."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nilometer.cli.demo_check import judge
from nilometer.pipeline.formats.definition import builtin_formats, texts
from nilometer.pipeline.formats.matcher import Matcher, text_of
from support.pipeline.log_lines import HAND_PICKED, HOSTILE, RECORDED, generated

SAMPLES = Path(__file__).parent / "format_samples"
FORMATS_OF = {
    "access": {"access"},
    "alternatives": {"alternatives"},
    "apache-error": {"apache-error"},
    "apt-history": {"apt"},
    "apt-term": {"apt-term"},
    "dpkg": {"dpkg"},
    "journald": {"journald"},
    "json-access": {"json-access"},
    "kafka": {"kafka", "java-trace"},
    "log4j": {"log4j", "java-trace"},
    "nginx-error": {"nginx-error"},
    # log4j's and Python's layouts may be the same; the source code of a traceback is of no format.
    "python-colon": {"log4j", "python", "python-basic", "unparsed"},
    "python": {"python", "python-basic", "unparsed"},
    "spark": {"spark", "java-trace"},
    "syslog-5424": {"syslog-5424"},
    "syslog": {"syslog", "unparsed"},
    "zookeeper": {"zookeeper"},
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RECORDED_US = (RECORDED - EPOCH) // timedelta(microseconds=1)
WRITTEN = (datetime(2024, 5, 1, tzinfo=UTC), datetime(2026, 11, 24, tzinfo=UTC))
WITHOUT_TIME = {"java-trace", "python-basic", "apt", "apt-term"}


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher(builtin_formats())


def expected_formats(name: str) -> set[str]:
    return FORMATS_OF[max((one for one in FORMATS_OF if name.startswith(one)), key=len)]


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.log")), ids=lambda path: path.stem)
def test_every_line_of_a_real_log_is_of_its_format_and_has_its_time(matcher, path):
    lines = path.read_bytes().splitlines()
    recorded = (datetime(2026, 11, 23, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    found = [matcher.match(line, recorded_us=recorded) for line in lines]
    counts = Counter(one.format for one in found if one.format != "blank")
    assert set(counts) <= expected_formats(path.stem)
    assert counts["unparsed"] <= 1
    assert sum(counts.values()) >= 4
    for one in found:
        if one.format not in WITHOUT_TIME and one.format not in ("blank", "unparsed"):
            assert one.time_us is not None
            assert WRITTEN[0] <= EPOCH + timedelta(microseconds=one.time_us) < WRITTEN[1]


def test_levels_and_keys_of_real_lines(matcher):
    def columns(name: str, number: int) -> tuple[str, str, str]:
        found = matcher.match((SAMPLES / f"{name}.log").read_bytes().splitlines()[number])
        return found.level, found.key, found.label

    assert columns("syslog-5424", 1) == ("warning", "app-name", "warning")
    assert columns("syslog-iso", 0) == ("err", "sshd", "err")
    assert columns("journald", 1) == ("err", "sshd", "err")
    assert columns("log4j-a", 4) == ("crit", "org.example.shop.Cart", "crit")
    assert columns("python-dash", 2) == ("warning", "shop.cart", "warning")
    assert columns("zookeeper", 0) == ("info", "QuorumPeerConfig", "info")
    assert columns("apache-error", 5) == ("err", "authz_core", "err")
    assert columns("json-access-nginx", 2)[1:] == ("/a", "404")


def test_the_examples_in_the_definitions_are_of_their_format(matcher):
    for definition in builtin_formats():
        assert definition.summary
        examples = texts(definition.example)
        assert examples, definition.name
        for line in examples:
            assert matcher.match(line.encode(), recorded_us=RECORDED_US).format == definition.name, line


def test_the_formats_of_before_find_what_a_parser_without_patterns_finds(matcher):
    """The census judges lines with string operations only, and knows the formats that are tried first."""
    lines = [*HAND_PICKED, *HOSTILE, *generated(12_000, seed=31)]
    seen: Counter[str] = Counter()
    for line in lines:
        verdict = judge(text_of(line), RECORDED)
        found = matcher.match(line, recorded_us=RECORDED_US)
        seen[verdict.format] += 1
        assert found.format == verdict.format, line
        minute = None if found.time_us is None else EPOCH + timedelta(microseconds=found.time_us)
        shown = minute and minute.replace(second=0, microsecond=0, tzinfo=None)
        assert (found.label, found.key, shown) == (verdict.label, verdict.name, verdict.minute), line
    assert min(seen[one] for one in ("access", "syslog", "dpkg", "apt", "alternatives", "unparsed")) > 200
