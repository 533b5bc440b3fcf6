"""Counts the demo's log lines in plain Python, and compares the pipeline's numbers with that count.

The count shares no code with the pipeline, so that a line that one of them loses or repeats shows.
"""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from rich.console import Console
from rich.table import Table

from nilometer.local.secure_cluster import SecureFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# One run of the demo: its folders and topic, and its messages on the terminal.

DATA_DIR = Path(".nilometer/demo")
SECURE_DATA_DIR = Path(".nilometer/secure-demo")
TOPIC_PREFIX = "demo-"


class DemoFailed(Exception):
    """The demo failed; the message is for the user."""


@dataclass(slots=True)
class Demo:
    """One run of the demo."""

    console: Console
    began: datetime = field(default_factory=datetime.now)
    bootstrap: str = ""
    secure: bool = False
    """Whether the brokers have TLS, users and ACLs."""
    zookeeper: str | None = None
    """The brokers' ZooKeeper as ``host:port,…/chroot``; None: a folder is the coordination store."""

    @property
    def data_dir(self) -> Path:
        return SECURE_DATA_DIR if self.secure else DATA_DIR

    @property
    def security(self) -> SecureFolder | None:
        """The folder with the settings of clients; None if they need none."""
        return SecureFolder(self.data_dir) if self.secure else None

    @property
    def topic(self) -> str:
        return f"{TOPIC_PREFIX}{self.began:%Y%m%d-%H%M%S}"

    @property
    def run_dir(self) -> Path:
        return self.data_dir / "runs" / self.topic

    def print_step(self, what: str) -> None:
        self.console.print(
            f"[bold]{(datetime.now() - self.began).total_seconds():5.1f} s[/bold]  {what}", highlight=False
        )

    @contextmanager
    def step(self, what: str) -> Generator[None, None, None]:
        """Show ``what`` while the block runs."""
        self.print_step(what)
        with self.console.status(what):
            yield


# Counts log lines in plain Python, to check the results of the ``logs`` pipeline.
#
# Parses lines without regular expressions; shares no code and no library with the pipeline, so that an error
# in one of them makes the counts differ.

SEVERITIES = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"]
SAME_LEVEL = {"panic": "emerg", "critical": "crit", "fatal": "crit", "error": "err", "warn": "warning"}
DPKG_ACTIONS = {
    "startup",
    "install",
    "upgrade",
    "configure",
    "trigproc",
    "remove",
    "purge",
    "disappear",
    "status",
    "conffile",
}
APT_KEYS = {
    "Commandline",
    "Requested-By",
    "Install",
    "Upgrade",
    "Downgrade",
    "Reinstall",
    "Remove",
    "Purge",
    "Error",
    "Comment",
}
DIGITS = set("0123456789")
FORMATS = ("access", "syslog", "dpkg", "apt", "alternatives", "blank", "unparsed")
"""The formats that are known here: the first that the pipeline tries. Lines of others are ``unparsed``."""


class Verdict(NamedTuple):
    """The result of parsing one line: format, label, name, and the minute of its time."""

    format: str
    label: str = ""
    name: str = ""
    minute: datetime | None = None


UNPARSED = Verdict("unparsed")


@dataclass(slots=True)
class Census:
    lines: int = 0
    by_format: Counter[str] = field(default_factory=Counter[str])
    by_label: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    by_name: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    by_minute: Counter[tuple[str, datetime | None]] = field(
        default_factory=Counter[tuple[str, datetime | None]]
    )

    def add(self, line: bytes, recorded: datetime) -> None:
        verdict = judge(line.decode("utf-8", "replace").removesuffix("\r"), recorded)
        self.lines += 1
        self.by_format[verdict.format] += 1
        self.by_label[verdict.format, verdict.label] += 1
        self.by_name[verdict.format, verdict.name] += 1
        self.by_minute[verdict.format, verdict.minute] += 1


def take_census(paths: Iterable[Path]) -> Census:
    census, now = Census(), datetime.now(UTC)
    for path in paths:
        for line in lines_of(path):
            census.add(line, now)
    return census


def lines_of(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for line in file:
            yield line.removesuffix(b"\n")


def judge(line: str, recorded: datetime) -> Verdict:
    """Parse one line. ``recorded`` is its time of ingestion, from which a syslog line gets its year."""
    return (
        _access(line)
        or _syslog(line, recorded)
        or _syslog_iso(line)
        or _dpkg(line)
        or _apt(line)
        or _alternatives(line)
        or (Verdict("blank") if not line.strip(" ") else UNPARSED)
    )


def _minute(time: datetime) -> datetime:
    return time.astimezone(UTC).replace(second=0, microsecond=0, tzinfo=None)


def _shape(text: str) -> str:
    """Return ``text`` with 0 for every digit, to check its form more strictly than ``strptime`` does."""
    return "".join("0" if sign in DIGITS else sign for sign in text)


def _time(text: str, form: str) -> datetime | None:
    try:
        time = datetime.strptime(text, form)
    except ValueError:
        return None
    return _plausible(time)


def _plausible(time: datetime) -> datetime | None:
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return time if time >= datetime(1970, 1, 2, tzinfo=UTC) else None


def _access(line: str) -> Verdict | None:
    words = line.split(" ", 3)
    if len(words) < 4 or not all(words[:3]) or not words[3].startswith("["):
        return None
    stamp, _, rest = words[3][1:].partition("]")
    request, rest = _quoted(rest[1:]) if rest.startswith(" ") else (None, rest)
    if request is None or not rest.startswith(" "):
        return None
    status, _, rest = rest[1:].partition(" ")
    size = rest.partition(" ")[0]
    if len(status) != 3 or not DIGITS.issuperset(status) or not size:
        return None
    well_formed = _shape(stamp[:2] + stamp[6:]) in ("00/0000:00:00:00 +0000", "00/0000:00:00:00 -0000")
    time = _time(stamp, "%d/%b/%Y:%H:%M:%S %z") if well_formed else None
    if time is None or (size != "-" and not DIGITS.issuperset(size)):
        return None
    words = request.split(" ")[1:]
    version = words[-1].removeprefix("HTTP/") if len(words) > 1 else ""
    if words and version and words[-1] != version and set(version) <= set("0123456789."):
        words.pop()
    target = " ".join(words).partition("?")[0].partition("#")[0]
    if request.startswith(" ") or target.startswith(" "):
        target = ""
    return Verdict("access", status, target or request, _minute(time))


def _quoted(text: str) -> tuple[str | None, str]:
    """Return the quoted string at the beginning of ``text`` (None if there is none), and the rest."""
    if not text.startswith('"'):
        return None, text
    at = 1
    while at < len(text) and text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return (text[1:at], text[at + 1 :]) if at < len(text) else (None, text)


def _priority(line: str) -> tuple[str, str]:
    """Return the digits of a priority such as ``<13>`` at the start (or ""), and the rest."""
    digits, bracket, rest = line.partition(">")
    if bracket and digits.startswith("<") and 1 <= len(digits) - 1 <= 3 and DIGITS.issuperset(digits[1:]):
        return digits[1:], rest
    return "", line


def _syslog(line: str, recorded: datetime) -> Verdict | None:
    priority, rest = _priority(line)
    month, space, rest = rest.partition(" ")
    if not (space and len(month) == 3 and month.isascii() and month.istitle()):
        return None
    day, _, rest = rest.removeprefix(" ").partition(" ")
    clock, _, rest = rest.partition(" ")
    host, _, rest = rest.partition(" ")
    if _shape(day) not in ("0", "00") or _shape(clock) != "00:00:00" or not host:
        return None
    year = recorded.year
    time = _time(f"{year} {month} {day} {clock}", "%Y %b %d %H:%M:%S")
    if time is None or time > recorded + timedelta(days=1):
        time = _time(f"{year - 1} {month} {day} {clock}", "%Y %b %d %H:%M:%S")
    return None if time is None else _syslog_message(priority, time, rest)


def _syslog_iso(line: str) -> Verdict | None:
    priority, rest = _priority(line)
    stamp, _, rest = rest.partition(" ")
    host, _, rest = rest.partition(" ")
    if _shape(stamp[:19]) != "0000-00-00T00:00:00" or not _fraction_and_zone(stamp[19:]) or not host:
        return None
    try:
        time = _plausible(datetime.fromisoformat(stamp))
    except ValueError:
        return None
    return None if time is None else _syslog_message(priority, time, rest)


def _fraction_and_zone(text: str) -> bool:
    """Whether ``text`` is an optional fraction of a second and an optional time zone, and nothing else."""
    if text.endswith("Z"):
        text = text[:-1]
    elif _shape(text[-6:]) in ("+00:00", "-00:00"):
        text = text[:-6]
    elif _shape(text[-5:]) in ("+0000", "-0000"):
        text = text[:-5]
    return not text or (text[0] == "." and 1 <= len(text) - 1 <= 9 and DIGITS.issuperset(text[1:]))


def _syslog_message(priority: str, time: datetime, rest: str) -> Verdict | None:
    tag, colon, message = rest.partition(":")
    program, bracket, pid = tag.partition("[")
    if not colon or not program or " " in tag or "]" in program:
        return None
    if bracket and not (pid.endswith("]") and pid[:-1] and DIGITS.issuperset(pid[:-1])):
        return None
    level = SEVERITIES[int(priority) % 8] if priority else _level_word(message.removeprefix(" "))
    return Verdict("syslog", level, program, _minute(time))


def _level_word(message: str) -> str:
    start = 1 if message[:1] in ("[", "<", "(") else 0
    end = start
    while end < len(message) and message[end].isascii() and message[end].isalpha():
        end += 1
    word = message[start:end].lower()
    known = word in SAME_LEVEL or word in SEVERITIES
    return (
        SAME_LEVEL.get(word, word) if known and message[end : end + 1] in ("]", ">", ")", ":") else "unstated"
    )


def _stamp(text: str) -> tuple[datetime | None, str]:
    """Parse a date and a time with one or two spaces between; return them (or None) and the rest."""
    date, clock = text[:10], text[11:].removeprefix(" ")
    if text[10:11] != " " or _shape(date) != "0000-00-00" or _shape(clock[:8]) != "00:00:00":
        return None, text
    return _time(f"{date} {clock[:8]}", "%Y-%m-%d %H:%M:%S"), clock[8:]


def _dpkg(line: str) -> Verdict | None:
    time, rest = _stamp(line)
    words = rest.split(" ")
    if time is None or len(words) < 2 or words[0] or words[1] not in DPKG_ACTIONS:
        return None
    action = words[1]
    of_package = words[3:4] if action == "status" else words[2:3]
    name = "dpkg" if action == "startup" else (of_package or [""])[0].partition(":")[0]
    return Verdict("dpkg", action, name, _minute(time))


def _apt(line: str) -> Verdict | None:
    key, separator, value = line.partition(": ")
    if key in ("Start-Date", "End-Date"):
        time, rest = _stamp(value)
        return Verdict("apt", key.lower(), "", _minute(time)) if time is not None and not rest else None
    if key not in APT_KEYS or not separator or not value or value.startswith(" "):
        return None
    return Verdict("apt", key.lower(), value.split(" ")[0] if key == "Commandline" else "")


def _alternatives(line: str) -> Verdict | None:
    program, _, rest = line.partition(" ")
    time, rest = _stamp(rest)
    if program != "update-alternatives" or time is None or not rest.startswith(": "):
        return None
    word = rest[2:].split(" ")[0]
    return Verdict("alternatives", word, "update-alternatives", _minute(time)) if word else None


# --- the comparison


def counting(files: Sequence[Path]) -> Callable[[], Census]:
    """Start counting the files in a thread; return a function that waits for the result and returns it."""
    result: list[Census] = []
    thread = threading.Thread(target=lambda: result.append(take_census(files)), daemon=True)
    thread.start()

    def wait() -> Census:
        thread.join()
        if not result:
            raise DemoFailed("the files could not be counted in plain Python")
        return result[0]

    return wait


def numbers_of(session: SparkSession, tables: Path) -> Census:
    """Return the pipeline's numbers of lines, read from the Parquet tables in folder ``tables``.

    ``lines`` of the result is the number of rows of the table ``lines``; ``by_format`` and ``by_label`` are
    the numbers of lines in the table ``counts``, added up over all batches. Lines of formats that the plain
    count does not know are ``unparsed``, as they are there.
    """
    census = Census(lines=session.read.parquet(f"{tables}/lines").count())
    rows = (
        session.read.parquet(f"{tables}/counts").where("by = 'label'").groupBy("format", "label").sum("lines")
    )
    counts = cast("list[tuple[str, str, int]]", rows.collect())
    for format_name, label, lines in counts:
        if format_name not in FORMATS:
            format_name, label = "unparsed", ""
        census.by_format[format_name] += lines
        census.by_label[format_name, label] += lines
    return census


def compare(demo: Demo, found: Census, wanted: Census) -> bool:
    """Print both counts as a table; return whether all numbers are equal."""
    table = Table(title="Pipeline beside an independent count of the input", title_justify="left")
    for column in ("what", "pipeline", "plain count", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    agreed = True

    def row(what: str, ours: int, theirs: int) -> None:
        nonlocal agreed
        agreed = agreed and ours == theirs
        table.add_row(what, f"{ours:,}", f"{theirs:,}", "equal" if ours == theirs else "[red]DIFFERENT[/red]")

    row("lines in all", found.lines, wanted.lines)
    row("lines counted", sum(found.by_format.values()), wanted.lines)
    for name in sorted(found.by_format.keys() | wanted.by_format.keys()):
        what = "no format, or one that only the pipeline knows" if name == "unparsed" else f"format {name}"
        row(what, found.by_format[name], wanted.by_format[name])
    for key in sorted(found.by_label.keys() | wanted.by_label.keys()):
        row(f"{key[0]} {key[1] or '(none)'}", found.by_label[key], wanted.by_label[key])
    demo.console.print(table)
    if agreed:
        demo.print_step(
            f"[green]Verified:[/green] {found.lines:,} lines, every count equal to that of the input files: "
            "nothing was lost or repeated through the death of a leader"
        )
    else:
        demo.print_step(
            "[red]NOT verified:[/red] the pipeline's numbers differ from those of the input files"
        )
    return agreed
