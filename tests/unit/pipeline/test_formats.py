"""Definitions of formats, the matcher made of them, hostile lines, and lines written and read back."""

from __future__ import annotations

import csv
import io
import json
import random
import string
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.pipeline.formats.columns import (
    Columns,
    Line,
    TimeFormatError,
    as_text,
    compile_times,
    level_of,
)
from nilometer.pipeline.formats.definition import (
    FormatError,
    all_formats,
    builtin_formats,
    formats_named,
    parse_formats,
)
from nilometer.pipeline.formats.matcher import LINE_BYTES_MAX, UNPARSED, Matcher, Reader, reader_of, text_of
from nilometer.pipeline.formats.proposals import clusters, propose
from nilometer.pipeline.formats.tally import Tally
from support.properties import examples

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RECORDED_US = 1_714_557_600_000_000


def matcher_of(toml: str, timezone: str = "UTC") -> Matcher:
    return Matcher(parse_formats(toml, "mine.toml"), timezone)


@pytest.fixture(scope="module")
def builtin() -> Matcher:
    return Matcher(builtin_formats())


# --- definitions


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("format = 5", "mine.toml"),
        ("[[format]\n", "mine.toml is not TOML"),
        ("x = 1", r"has no \[\[format\]\]"),
        ('[[format]]\nname = "a"', "format a: it needs exactly one of pattern, json, logfmt, columns"),
        ('[[format]]\nname = "a"\npattern = "x"\njson = {a = "a"}', "has pattern, json"),
        ('[[format]]\nname = "a"\npatern = "x"', "unknown field `patern` in format a"),
        ('[[format]]\nname = "a"\npattern = "(?=x)"', "RE2 has no look-ahead"),
        ("[[format]]\nname = \"a\"\npattern = '(x)\\1'", "RE2 has no back-references"),
        ('[[format]]\nname = "a"\npattern = "(?P<x>a)"\ntime = "y"', "time names y, which is no column"),
        ('[[format]]\nname = "a"\npattern = "(?P<x>a)"\ntypes = {x = "date"}', "format a"),
        ('[[format]]\nname = "Blank line"\npattern = "x"', "small letters"),
        ('[[format]]\nname = "unparsed"\npattern = "x"', "none of blank, unparsed"),
        ('[[format]]\nname = "a"\ncolumns = ["x", "x"]', "a name twice"),
        ('[[format]]\nname = "a"\ncolumns = ["x y"]', "is no name of a column"),
        ('[[format]]\nname = "a"\ncolumns = ["x", "y"]\nseparator = "ab"', "separator is one character"),
    ],
)
def test_a_wrong_definition_is_refused_with_file_format_and_reason(toml, says):
    with pytest.raises(FormatError, match=says) as raised:
        parse_formats(toml, "mine.toml")
    assert "mine.toml" in str(raised.value)


def test_a_wrong_time_format_is_refused_with_the_directives_that_there_are():
    for form, says in (("%Q", "%Q is no directive"), ("%H:%M", "no month"), ("%Y-%m-%d %H %Y", "twice")):
        with pytest.raises(FormatError, match=says):
            matcher_of(f'[[format]]\nname = "a"\npattern = "(?P<t>.*)"\ntime = "t"\ntime_format = "{form}"')
    with pytest.raises(FormatError, match="no time zone 'Mars/Base'"):
        matcher_of('[[format]]\nname = "a"\npattern = "x"', "Mars/Base")


def test_ones_own_formats_come_first_and_replace_those_of_the_same_name():
    own = '[[format]]\nname = "access"\npattern = "mine (?P<host>.*)"\nkey = "host"'
    found = all_formats([("mine.toml", own)])
    assert found[0].name == "access"
    assert [one.name for one in found].count("access") == 1
    assert Matcher(found).match(b"mine h").key == "h"
    assert [one.name for one in formats_named(found, ["dpkg"])] == ["dpkg"]
    with pytest.raises(FormatError, match="there is no format nonsense"):
        formats_named(found, ["nonsense"])


def test_a_format_of_some_files_takes_lines_of_these_only():
    matcher = matcher_of('[[format]]\nname = "a"\npattern = ".*"\nfiles = ["*/app*.log"]')
    assert matcher.match(b"x", "/srv/app-1.log").format == "a"
    assert matcher.match(b"x", "/srv/web.log").format == "unparsed"
    assert matcher.match(b"x").format == "unparsed"


def test_types_required_columns_and_derived_ones():
    matcher = matcher_of(
        """
[[format]]
name = "a"
pattern = '(?P<n>[^ ]*) (?P<word>[^ ]*)(?: (?P<ok>.*))?'
types = { n = "integer", ok = "boolean", word = "upper" }
required = ["word"]
level = "level"
derived = [{ column = "level", of = "word", pattern = '^(w)', value = "warn" }]
"""
    )
    assert matcher.match(b"12 www yes").fields == {"n": 12, "word": "WWW", "ok": True, "level": "warn"}
    assert matcher.match(b"12 www yes").level == "warning"
    for line in (b"x www", b"12 ", b"12 www perhaps", b"99999999999999999999 www", "١ www".encode()):
        assert matcher.match(line).format == "unparsed"


def test_json_paths_alternatives_and_names_with_dots():
    matcher = matcher_of(
        '[[format]]\nname = "a"\ntime = "at"\ntime_format = "epoch"\nlevel = "level"\n'
        '[format.json]\nat = ["missing", "@t"]\nlevel = "log.level"\nuser = "who.name.0"\nall = "who"\n'
    )
    line = {"@t": 1_714_557_600.25, "log.level": 40, "who": {"name": {"0": "é"}}}
    found = matcher.match(json.dumps(line).encode())
    assert (found.time_us, found.level, found.fields["user"]) == (1_714_557_600_250_000, "warning", "é")
    assert json.loads(str(found.fields["all"])) == line["who"]
    for bad in (b'{"@t": "soon"}', b'{"@t": 1714557600', b"[1]", b'"x"', b'{"@t": null}', b'{"@t": [1]}'):
        assert matcher.match(bad).format == "unparsed"


def test_a_header_of_separated_values_is_no_row():
    matcher = matcher_of('[[format]]\nname = "csv"\ncolumns = ["id", "at", "what"]\ntime = "at"\n')
    assert matcher.match(b"id,at,what").label == "header"
    assert matcher.match(b'1,2024-05-01 10:00:00,"a, b"').fields["what"] == "a, b"
    assert matcher.match(b"1,2024-05-01 10:00:00,").fields == {"id": "1", "at": "2024-05-01 10:00:00"}
    for line in (b"1,2", b'1,2024-05-01 10:00:00,"open', b"1,then,x", b"a,b,c,d"):
        assert matcher.match(line).format == "unparsed"


# --- times


def us(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


@given(
    st.datetimes(datetime(1975, 1, 1), datetime(2068, 1, 1)),
    st.integers(-23 * 60, 23 * 60),
    st.sampled_from(
        ["%Y-%m-%dT%H:%M:%S.%f%z", "%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %Y", "%y%m%d %H%M%S",
         "%Y/%m/%d %I:%M:%S %p", "%d.%m.%Y %H:%M:%S", "%Y-%m-%d %H:%M:%S,%f"]
    ),
)  # fmt: skip
def test_a_time_that_strftime_wrote_is_read_back(time, minutes, form):
    if "%y" in form:
        time = time.replace(year=2000 + time.year % 100)
    if "%f" not in form:
        time = time.replace(microsecond=0)
    offset = timedelta(minutes=minutes) if "%z" in form else timedelta()
    written = (time + offset).strftime(form)
    if "%z" in form:
        sign, size = ("-", -offset) if offset < timedelta() else ("+", offset)
        written = (time + offset).strftime(form.replace("%z", "")) + (
            f"{sign}{size.seconds // 3600:02}{size.seconds // 60 % 60:02}"
        )
    read = compile_times([form], UTC)
    assert read(written, 0) == us(time.replace(tzinfo=UTC)), written
    assert read(written + "x", 0) is None


@given(st.datetimes(datetime(1975, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_iso_times_and_numbers_are_read_back(time):
    iso, epoch = compile_times(["iso8601"], UTC), compile_times(["epoch"], UTC)
    assert iso(time.isoformat(), 0) == us(time)
    assert iso(time.isoformat().replace("+00:00", "Z").replace("T", " "), 0) == us(time)
    assert epoch(f"{us(time) // 10**6}.{us(time) % 10**6:06}", 0) == us(time)
    assert compile_times(["epoch_us"], UTC)(str(us(time)), 0) == us(time)
    assert compile_times(["epoch_ns"], UTC)(f"{us(time)}999", 0) == us(time)
    assert compile_times(["epoch_ms"], UTC)(str(us(time) // 1000), 0) == us(time) // 1000 * 1000


@pytest.mark.parametrize(
    "text",
    ["2024-02-30 10:00:00", "2024-01-01 24:00:00", "0001-01-01 00:00:00", "2024-01-01 10:00:00+24:00", ""],
)
def test_a_time_that_does_not_exist_is_none(text):
    assert compile_times(["iso8601"], UTC)(text, 0) is None


def test_a_time_without_a_year_is_of_the_year_before_rather_than_of_the_future():
    read = compile_times(["%b %e %H:%M:%S"], UTC)
    recorded = us(datetime(2024, 2, 3, 12, tzinfo=UTC))
    assert read("Feb  4 11:59:59", recorded) == us(datetime(2024, 2, 4, 11, 59, 59, tzinfo=UTC))
    assert read("Feb  4 12:00:01", recorded) == us(datetime(2023, 2, 4, 12, 0, 1, tzinfo=UTC))
    assert read("Feb 29 00:00:00", us(datetime(2025, 1, 1, tzinfo=UTC))) == us(
        datetime(2024, 2, 29, tzinfo=UTC)
    )
    assert read("Feb 29 00:00:00", us(datetime(2023, 1, 1, tzinfo=UTC))) is None


def test_times_without_a_zone_are_in_the_given_one():
    toml = '[[format]]\nname = "a"\npattern = "(?P<t>.*)"\ntime = "t"'
    assert matcher_of(toml, "Europe/Zurich").match(b"2024-07-01 10:00:00").time_us == us(
        datetime(2024, 7, 1, 8, tzinfo=UTC)
    )
    with pytest.raises(TimeFormatError, match="is no directive"):
        compile_times(["%j"], UTC)


# --- lines written and read back

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n\r"), max_size=30)
WORD = st.text(string.ascii_letters + string.digits + "._-é日", min_size=1, max_size=12)


@given(WORD, TEXT, WORD, st.integers(100, 999), st.integers(0, 10**15), TEXT)
def test_an_access_line_is_read_back(builtin, host, request, user, status, size, agent):
    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"')

    line = f'{host} - {user} [10/Oct/2000:13:55:36 -0700] "{quoted(request)}" {status} {size}'
    line += f' "-" "{quoted(agent)}"'
    fields = builtin.match(line.encode()).fields
    assert {name: fields.get(name) for name in ("host", "user", "request", "status", "size", "agent")} == {
        "host": host, "user": user, "request": quoted(request), "status": str(status), "size": str(size),
        "agent": quoted(agent),
    }  # fmt: skip


SCALARS = st.one_of(
    TEXT, st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c.d", "@e"]), SCALARS, min_size=1))
def test_a_json_object_is_read_back(values):
    matcher = matcher_of('[[format]]\nname = "j"\n[format.json]\na = "a"\nb = "b"\nd = "c.d"\ne = "@e"')
    names = {"a": "a", "b": "b", "c.d": "d", "@e": "e"}
    assert matcher.match(json.dumps(values).encode()).fields == {
        names[key]: value for key, value in values.items()
    }


@given(st.lists(TEXT, min_size=3, max_size=3).filter(lambda cells: any(cell.strip() for cell in cells)),
       st.sampled_from([",", "\t", ";", "|"]))  # fmt: skip
def test_separated_values_are_read_back(cells, separator):
    matcher = matcher_of(
        f'[[format]]\nname = "c"\ncolumns = ["a", "b", "c"]\nseparator = {json.dumps(separator)}'
    )
    written = io.StringIO()
    csv.writer(written, delimiter=separator, lineterminator="").writerow(cells)
    wanted = {name: cell for name, cell in zip("abc", cells, strict=True) if cell}
    assert matcher.match(written.getvalue().encode()).fields == wanted


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), TEXT, min_size=2))
def test_logfmt_is_read_back(values):
    def written(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    matcher = matcher_of('[[format]]\nname = "l"\n[format.logfmt]\na = "a"\nb = "b"\nc = "c"')
    line = " ".join(f"{key}={written(value)}" for key, value in values.items())
    assert matcher.match(line.encode()).fields == values


# --- hostile lines

BOMBS = (
    "((a*)*)*b",
    "(?P<x>(a|a)*)c",
    "(?P<x>(.*)*(.*)*(.*)*(.*)*)z",
    "(?P<x>([^ ]+ ?)*)!",
)


@pytest.mark.timeout(60)
def test_no_pattern_and_no_line_takes_long():
    """A backtracking matcher would need longer than the universe is old for the first of these pairs."""
    own = "\n".join(f'[[format]]\nname = "bomb-{n}"\npattern = "{one}"' for n, one in enumerate(BOMBS))
    matcher = Matcher(all_formats([("mine.toml", own)]))
    for line in (
        b"a" * 1_000_000,
        b"a " * 500_000,
        b'::1 - - [01/Jan/2024:00:00:00 +0000] "' + b'\\"' * 500_000,
        b"{" * 1_000_000,
        b'{"a":' * 200_000,
        b'{"@timestamp":' + b"9" * 1_000_000 + b"}",
        b'k="' + b"\\" * 1_000_000,
        b"k=v " * 250_000 + b'"',
        b"=" * 1_000_000,
        b'"' * 1_000_000,
        b"<34>1 " + b"[" * 1_000_000,
        b"\xff" * 300_000,
        b"\0" * 1_000_000,
        b"9" * 1_000_000,
        b" \t" * 500_000,
    ):
        assert matcher.match(line).format in ("unparsed", "logfmt", "blank"), line[:40]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_the_end_of_a_line_is_no_part_of_it(builtin, end):
    line = b'::1 - - [01/Jan/2024:00:00:00 +0000] "GET / HTTP/1.1" 200 5'
    assert builtin.match(line + end) == builtin.match(line)
    assert builtin.match(line).format == "access"
    assert builtin.match(end).format == "blank"
    assert builtin.match(line + end + line).format == "unparsed"


def test_a_line_that_is_too_long_is_of_no_format(builtin):
    start = b'::1 - - [01/Jan/2024:00:00:00 +0000] "GET / HTTP/1.1" 200 5 '
    assert builtin.match(start + b"x" * (LINE_BYTES_MAX - len(start))).format == "access"
    assert builtin.match(start + b"x" * (LINE_BYTES_MAX - len(start) + 1)).format == "unparsed"


@examples(300)
@given(st.binary(max_size=200), st.randoms(use_true_random=False))
def test_any_bytes_give_a_line_and_text_that_can_be_written(builtin, noise, rng: random.Random):
    examples = [
        text
        for one in builtin_formats()
        for text in ([one.example] if isinstance(one.example, str) else one.example)
    ]
    line = bytearray(rng.choice(examples).encode())
    at = rng.randrange(len(line) + 1)
    line[at:at] = noise
    found = builtin.match(bytes(line), recorded_us=RECORDED_US)
    assert found.format in {*builtin.names, "blank", "unparsed"}
    for value in found.fields.values():
        as_text(value).encode("utf-8")


def test_formats_that_cannot_take_a_line_by_its_first_byte_are_skipped_without_a_difference(builtin):
    """The result is that of trying every format in order."""
    rng = random.Random(5)
    each = [(reader_of(one), Columns(one, UTC)) for one in builtin_formats()]
    examples = [
        text
        for one in builtin_formats()
        for text in ([one.example] if isinstance(one.example, str) else one.example)
    ]
    for _ in range(2_000):
        line = bytearray(rng.choice(examples).encode())
        line[rng.randrange(min(3, len(line)))] = rng.randrange(256)
        wanted = first_that_fits(each, text_of(bytes(line)))
        found = builtin.match(bytes(line), recorded_us=RECORDED_US)
        assert found == (wanted or UNPARSED)


def first_that_fits(each: list[tuple[Reader, Columns]], text: str) -> Line | None:
    for read, columns in each:
        found = read(text, text.encode())
        line = columns.line(found, RECORDED_US) if found is not None else None
        if line is not None:
            return line
    return None


# --- levels, counts, proposals


def test_levels_have_one_name_each():
    words = ("WARN", "Warning", "4", "40", "ERROR", "3", "FATAL", "panic", "x1")
    assert [level_of(one) for one in words] == [
        "warning", "warning", "warning", "warning", "err", "err", "crit", "emerg", "x1",
    ]  # fmt: skip


def test_a_tally_adds_up_by_file_and_survives_json():
    tally = Tally()
    for source, form, lines in (
        ("a", "access", 3),
        ("a", "unparsed", 1),
        ("b", "blank", 4),
        ("b", "dpkg", 1),
    ):
        tally.add(source, form, lines)
    tally.add_sample("a", "x" * 1_000)
    again = Tally()
    again.merge(json.loads(json.dumps(tally.to_json())))
    assert again.to_json() == tally.to_json()
    assert (tally.lines, tally.recognised, tally.blank, tally.unrecognised) == (9, 4, 4, 1)
    assert tally.unrecognised_share == 1 / 5
    assert [file["path"] for file in tally.files()] == ["a", "b"]
    for number in range(2_000):
        tally.add(f"file {number}", "access")
    assert len(tally.files()) <= 501
    assert tally.lines == 2_009


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["2024/05/01 10:00:00 [7] WARN shop: slow", "2024/05/01 10:00:01 [8] INFO cart: took 3"],
         {"time", "level", "key"}),
        (["[05.01.2024 10:00:00] ERROR (main) shop: gone"] * 3, {"time", "level", "key"}),
        (["1714557600 10.0.0.1 user=7 logged in", "1714557601 10.0.0.2 user=9 logged out"], {"time"}),
        (["id;when;level", "1;2024-05-01 10:00:00;info", "2;2024-05-01 10:00:01;warn"], {"time", "level"}),
        (['{"when":"2024-05-01T10:00:00Z","severity":"info","a":{"b":1}}'] * 3, {"time", "level"}),
        (["caching 5 fonts in /usr/share", "caching 9 fonts in /opt"], set()),
    ],
)  # fmt: skip
def test_a_proposal_takes_the_lines_that_it_was_made_of(lines, wanted):
    first = propose(lines)[0]
    assert first.lines == len(lines)
    matcher = matcher_of(first.toml)
    found = [matcher.match(line.encode()) for line in lines]
    assert {one.format for one in found} == {first.name}
    rows = [one for one in found if one.label != "header"]
    assert all(one.time_us is not None for one in rows) == ("time" in wanted)
    assert all(bool(one.level) for one in rows) == ("level" in wanted)
    assert all(bool(one.key) for one in rows) == ("key" in wanted)


def test_lines_without_anything_in_common_get_no_proposal_and_are_counted():
    lines = ["of no kind at all", "neither is this", "\0", "x" * 5_000]
    assert propose(lines) == []
    assert sum(count for count, _ in clusters(lines)) == 4


@given(st.lists(TEXT, max_size=8))
def test_any_lines_can_be_looked_at_for_proposals(lines):
    for one in propose(lines):
        assert matcher_of(one.toml).match_text(one.samples[0]).format == one.name
