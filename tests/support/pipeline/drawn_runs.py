"""Pipelines on drawn histories: random batches, restarts, and ends of the process within a batch.

After a history the results, the account, the watermark and the dead letters of a run are those of its model.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql.readwriter import DataFrameWriter

from nilometer.pipeline.batches import Batch, RunFiles
from nilometer.pipeline.run import runner
from nilometer.pipeline.run.catalogue import SHIPPED, given_settings, make_settings
from nilometer.pipeline.shipped import changelog
from nilometer.pipeline.tables.delta_store import DeltaStore
from nilometer.pipeline.tables.iceberg_store import IcebergStore
from nilometer.pipeline.tables.parquet_store import ParquetStore

from .drawn_records import (
    ANYTHING,
    ONE,
    SENT,
    SINCE_MAX,
    Drawn,
    Draws,
    changes,
    log_lines,
    measurements,
    notified,
    orders,
    payments,
    requests,
    rows,
)
from .filled_topics import Sent, Topics
from .pipeline_models import (
    USERS,
    Wanted,
    model_of_activity,
    model_of_burst,
    model_of_changelog,
    model_of_join,
    model_of_logs,
    model_of_metrics,
    model_of_notifications,
    model_of_table,
)
from .runs import forget_last_commit
from .table_batches import READERS, ROW_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Part = Mapping[str, Sequence[Drawn]]
"""The records that are sent before a run, by input."""
EFFECTS_MAX = 14
"""A batch has fewer effects."""
WIDTH = 100
"""The number of histories side by side in each run of the tests."""
USERS_MAX = 400
"""Five histories side by side share a user."""
KILLS_MAX = 3
ENDED_AS_PLANNED = (0, 3)
"""The exit codes of a run that was not killed; 3: many records were rejected."""
QUICK_JAVA = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_EFFECTS: tuple[tuple[Any, str], ...] = (
    (DataFrameWriter, "parquet"),
    (DataFrameWriter, "save"),
    (RunFiles, "save"),
    (RunFiles, "remove"),
    (DeltaStore, "commit"),
    (IcebergStore, "commit"),
    (ParquetStore, "commit"),
)
"""What a batch does to files and topics."""


@dataclass(frozen=True, repr=False)
class Case:
    """A pipeline, what is drawn for it, and the model of what comes of that."""

    pipeline: str
    inputs: Callable[[Draws], Mapping[str, st.SearchStrategy[Drawn]]]
    model: Callable[[Sequence[Part]], Wanted]
    found: Callable[[Ran], Any]
    writes: Sequence[str] = ()
    """Patterns of what a batch writes, in its order, beside offsets, account and commit."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """As for ``--set``; ``{folder}`` stands for that of the files."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    variant: str = ""
    has_late: bool = False

    def __repr__(self) -> str:
        return f"{self.pipeline}-{self.variant}" if self.variant else self.pipeline

    def parts(self, most: int = 3, records_min: int = 0) -> st.SearchStrategy[list[Part]]:
        drawn = {
            name: st.lists(one, min_size=records_min, max_size=25) for name, one in self.inputs(ONE).items()
        }
        return st.lists(st.fixed_dictionaries(drawn), min_size=1, max_size=most)

    def histories(self) -> st.SearchStrategy[History]:
        ends = st.lists(st.one_of(st.none(), st.integers(0, EFFECTS_MAX)), min_size=3, max_size=3)
        return st.builds(History, self.parts(), st.integers(3, 20), ends, st.booleans(), st.booleans())

    @property
    def moments(self) -> tuple[str, ...]:
        """Patterns of what is there after each step of a batch."""
        return (
            "checkpoint/offsets/[0-9]*",
            *self.writes,
            "account/batch=*",
            "checkpoint/commits/[0-9]*",
        )


@dataclass(frozen=True)
class History:
    parts: Sequence[Part]
    batch: int
    """The number of records in a batch."""
    ends: Sequence[int | None]
    """The number of effects after which the process of a run ends, as by kill -9; None: it does not."""
    repeated: bool
    """Whether the last batch is run again, as after a kill before its commit."""
    late: bool = False
    """Whether late records go to a topic."""


@dataclass(frozen=True)
class Kill:
    """When a process is killed: ``delay_s`` after something new is there that ``moment`` matches."""

    moment: str
    delay_s: float


@dataclass
class Ran:
    """Runs of a pipeline from topics of its own into one folder."""

    case: Case
    spark: SparkSession
    topics: Topics
    folder: Path
    late: bool = False
    sent: dict[str, list[Drawn]] = field(init=False)

    def __post_init__(self) -> None:
        self.names = {name: self.topics.create(1) for name in self.case.inputs(ONE)}
        self.to_topic, self.dead = self.topics.create(1), self.topics.create(1, prefix="dead")
        self.sent = {name: [] for name in self.case.inputs(ONE)}
        self.output = self.folder / self.case.pipeline
        self.shipped = SHIPPED[self.case.pipeline]
        self.late_topics: dict[str, str] = {}
        self.given = {name: text.format(folder=self.folder) for name, text in self.case.settings.items()}
        if self.late and self.case.has_late:
            first = self.given["late_topic"] = self.topics.create(1, prefix="late")
            self.late_topics = {
                name: self.topics.create(1, name=f"{first}-{name}") if name else first for name in self.names
            }
        for name, text in self.case.files.items():
            (self.folder / name).write_text(text)

    @property
    def table(self) -> str | None:
        return str(self.folder / "table.csv") if self.shipped.table else None

    def send(self, part: Part) -> None:
        at = int(SENT.timestamp() * 1000)
        for name, records in part.items():
            headers = [(("path", one.source.encode()),) if one.source else () for one in records]
            given = zip(records, headers, strict=True)
            self.topics.send(self.names[name], [Sent(0, one.key, one.value, at, path) for one, path in given])
            self.sent[name] += records

    def run(self, batch: int) -> None:
        """Run until everything is read."""
        module = self.shipped.load()
        settings = None
        if self.given:
            given = given_settings(self.case.pipeline, (), self.given)
            settings = make_settings(getattr(module, "Settings"), given)  # noqa: B009
        job = runner.Job(
            ",".join(self.names.values()),
            str(self.output),
            self.topics.bootstrap,
            available_now=True,
            options={"maxOffsetsPerTrigger": str(batch)},
            to_topic=self.to_topic if self.shipped.writes else None,
            dead_letters=self.dead,
            table=self.table,
            settings=settings,
        )
        runner.run(self.spark, module, job)

    def run_until_killed(self, batch: int, kill: Kill) -> None:
        """Run it as a process that is killed with its children, unless it has read everything before."""
        command = [sys.executable, "-m", "nilometer.cli", "pipeline", "run", self.case.pipeline]
        command += ["--home", str(self.folder), "--available-now", "--dead-letters", self.dead]
        command += ["--bootstrap-server", self.topics.bootstrap, "--option", f"maxOffsetsPerTrigger={batch}"]
        command += ["--conf", QUICK_JAVA]
        for name, topic in self.names.items():
            command += ["--topic", f"{name}={topic}" if name else topic]
        for name, value in self.given.items():
            command += ["--set", f"{name}={value}"]
        command += ["--to", self.to_topic] if self.shipped.writes else []
        command += ["--table", self.table] if self.table else []
        known = set(self.output.glob(kill.moment))
        path = self.folder / "printed"
        with path.open("wb") as printed:
            process = subprocess.Popen(command, stdout=printed, stderr=printed, start_new_session=True)
            try:
                while process.poll() is None and set(self.output.glob(kill.moment)) <= known:
                    time.sleep(0.005)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(kill.delay_s)
                has_ended = process.poll() is not None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert not has_ended or process.returncode in ENDED_AS_PLANNED, path.read_text()

    def check(self) -> None:
        if not any(self.sent.values()):
            return
        wanted = self.case.model(self._batches())
        accounts, watermark = self._account()
        assert accounts == wanted.accounts
        assert watermark == wanted.watermark
        assert self.case.found(self) == wanted.results
        refused = [
            (topic, offset, one.value)
            for name, topic in self.names.items()
            for offset, one in enumerate(self.sent[name])
            if one.fate == "rejected"
        ]
        assert self._letters() == sorted(refused, key=lambda one: one[:2])
        for name, topic in self.late_topics.items():
            assert Counter(one.value for one in self.read_topic(topic)) == Counter(wanted.books[name].late)

    def _batches(self) -> list[Part]:
        """Return the records of each batch by the offsets in the checkpoint."""
        found: list[Part] = []
        ends = dict.fromkeys(self.names, 0)
        inputs = {topic: name for name, topic in self.names.items()}
        paths = [path for path in (self.output / "checkpoint" / "offsets").glob("*") if path.name.isdigit()]
        for path in sorted(paths, key=lambda path: int(path.name)):
            batch: dict[str, list[Drawn]] = {name: [] for name in self.names}
            for line in path.read_text().splitlines()[2:]:
                for topic, offsets in json.loads(line).items():
                    if topic in inputs:
                        name = inputs[topic]
                        batch[name] = self.sent[name][ends[name] : offsets["0"]]
                        ends[name] = offsets["0"]
            found.append(batch)
        return found

    def _account(self) -> tuple[dict[str, Any], datetime | None]:
        """Return the accounts of all batches, without the reasons, which must be those of each record."""
        last = max((self.output / "account").glob("batch=*.json"))
        said = json.loads(last.read_text())
        for one in said["totals"].values():
            assert (
                sum(sum(reasons.values()) for reasons in one["reasons"].values()) + one["open"] == one["read"]
            )
            del one["reasons"], one["open_before"]
        us = said["watermark"]
        return said["totals"], None if us is None else datetime.fromtimestamp(0, UTC) + timedelta(
            microseconds=us
        )

    def _letters(self) -> list[tuple[str, int, bytes | None]]:
        found: list[tuple[str, int, bytes | None]] = []
        for row in self.read_topic(self.dead):
            headers = {one.key: bytes(one.value).decode() for one in row.headers}
            assert headers["dead.reason"]
            value = None if row.value is None else bytes(row.value)
            found.append((headers["dead.topic"], int(headers["dead.offset"]), value))
        return sorted(found, key=lambda one: one[:2])

    def read_topic(self, topic: str) -> list[Any]:
        options = {"kafka.bootstrap.servers": self.topics.bootstrap, "subscribe": topic}
        options |= {"includeHeaders": "true", "kafka.isolation.level": "read_committed"}
        return self.spark.read.format("nilometer").options(**options).load().collect()

    def rows(self, table: str) -> list[Any]:
        return self.spark.read.parquet(f"{self.output}/{table}").collect()


class Ended(Exception):
    """Stands for the end of the process: nothing after it has an effect."""


@contextlib.contextmanager
def ending_after(effects: int | None) -> Iterator[Callable[[], bool]]:
    """Have runs end after so many effects, without any tidying; the result says whether they have."""
    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            if effects is not None and count >= effects:
                count += 1
                raise Ended
            count += 1
            return real(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        if effects is not None:
            for owner, name in _EFFECTS:
                patch.setattr(owner, name, counted(getattr(owner, name)))
            patch.setattr(Batch, "undo", lambda _: None)
        yield lambda: effects is not None and count > effects


def check_history(case: Case, spark: SparkSession, topics: Topics, history: History) -> None:
    with TemporaryDirectory() as folder:
        ran = Ran(case, spark, topics, Path(folder), history.late)
        ended = False
        for part, effects in zip(history.parts, history.ends, strict=False):
            ran.send(part)
            with ending_after(effects) as has_ended:
                try:
                    ran.run(history.batch)
                except Exception:
                    if not has_ended():
                        raise
                ended = has_ended()
        if ended:
            ran.run(history.batch)
        if history.repeated and any(ran.sent.values()):
            forget_last_commit(ran.output)
            ran.run(history.batch)
        ran.check()


def drawn_parts(case: Case, number: int, most: int) -> list[Part]:
    """Return what is drawn for ``number``, the same in each run, and not the simplest example."""
    found: list[list[Part]] = []

    @seed(number)
    @settings(max_examples=2, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case.parts(most, records_min=10))
    def keep(one: list[Part]) -> None:
        found.append(one)

    keep()
    return found[-1]


def drawn_side_by_side(case: Case, number: int, most: int, width: int = WIDTH) -> list[Part]:
    """Return ``width`` histories in one, each with keys of its own: records of at most so many runs.

    They share batches, restarts and the watermark. Time goes on from one stage to the next, of which a run
    has some.
    """
    chance = Random(number)
    parts: list[Part] = []
    since = 0
    for _ in range(chance.randint(2, most)):
        part: dict[str, list[Drawn]] = {name: [] for name in case.inputs(ONE)}
        for _ in range(chance.randint(2, 4)):
            for name, strategy in case.inputs(Draws(width, since)).items():
                part[name] += drawn_records(strategy, chance, width)
            since = min(since + chance.choice((0, 2, 5, 10, 40)), SINCE_MAX)
        parts.append(part)
    return parts


def drawn_records(strategy: st.SearchStrategy[Drawn], chance: Random, width: int) -> list[Drawn]:
    """Return up to five records for each of so many histories."""
    found: list[list[Drawn]] = []

    @seed(chance.randrange(2**32))
    @settings(
        max_examples=1 + chance.randint(1, width // 5),
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(strategy, min_size=25, max_size=25))
    def keep(one: list[Drawn]) -> None:
        found.append(one)

    keep()
    return [one for records in found[1:] for one in records]  # the first are all alike


def check_side_by_side(
    case: Case, spark: SparkSession, topics: Topics, number: int, width: int = WIDTH
) -> None:
    """Check ``width`` histories that follow from ``number``: records, batches, ends of the process."""
    chance = Random(number)
    parts = drawn_side_by_side(case, number, 3, width)
    ends = [chance.choice((None, chance.randint(0, EFFECTS_MAX))) for _ in parts]
    repeated, late = chance.random() < 0.5, chance.random() < 0.5
    check_history(case, spark, topics, History(parts, chance.randint(1, 4) * width, ends, repeated, late))


def check_kills(case: Case, spark: SparkSession, topics: Topics, number: int, kills: int) -> None:
    """Check a history with so many kills that follows from ``number``: records, batches and moments."""
    chance = Random(number)
    parts = drawn_parts(case, number, kills)
    batch = chance.randint(5, 12)
    moments = [
        Kill(chance.choice(case.moments), chance.choice((0.0, chance.uniform(0, 0.2), chance.uniform(0, 3))))
        for _ in range(kills)
    ]
    with TemporaryDirectory() as folder:
        ran = Ran(case, spark, topics, Path(folder), chance.random() < 0.5)
        for part, kill in zip_longest(parts, moments):
            if part is not None:
                ran.send(part)
            if kill is not None:
                ran.run_until_killed(batch, kill)
        ran.run(batch)
        ran.check()


# --- what a run has given


def _zoned(at: datetime | None) -> datetime | None:
    return None if at is None else at.astimezone(UTC)


def _metrics(ran: Ran) -> Any:
    table = ran.rows("rollups")
    rollups = {
        (_zoned(row.minute), row.service, row.metric): (row["count"], row.sum, row.least, row.greatest)
        for row in table
    }
    assert len(rollups) == len(table)
    alerts = [json.loads(bytes(row.value)) for row in ran.read_topic(ran.to_topic)]
    return rollups, {one["id"]: one["value"] for one in alerts}


def _join(ran: Ran) -> Any:
    names = ("order", "customer", "name", "country", "payment", "paid")
    return Counter(tuple(row[name] for name in names) for row in ran.rows("settled"))


def _notifications(ran: Ran) -> Any:
    table = ran.rows("messages")
    messages = {row.id: (row.address, row.text) for row in table}
    assert len(messages) == len(table)
    # A batch that is run again sends its messages again, as they were.
    sent = [json.loads(bytes(row.value)) for row in ran.read_topic(ran.to_topic)]
    assert {one["id"]: (one["address"], one["text"]) for one in sent} == messages
    return messages


def _activity(ran: Ran) -> Any:
    names = ("host", "agent", "start", "end", "requests", "pages", "first_page", "last_page", "steps")
    sessions = Counter(
        tuple(_zoned(row[name]) if name in ("start", "end") else row[name] for name in names)
        for row in ran.rows("sessions")
    )
    views: Counter[Any] = Counter()
    for row in ran.rows("page_views"):
        views[_zoned(row.minute), row.path] += row.views
    return sessions, views


def _logs(ran: Ran) -> Any:
    lines = [
        (row.format, _zoned(row.event_time), row.label, row.name, row.source, row.line)
        for row in sorted(ran.rows("lines"), key=lambda row: row.offset)
    ]
    counts: Counter[Any] = Counter()
    for row in ran.rows("counts"):
        counts[row.by, row.format, _zoned(row.minute) if row.by == "minute" else row[row.by]] += row.lines
    return lines, counts


def _burst(ran: Ran) -> Any:
    drained = sorted(ran.rows("drained"), key=lambda row: row.batch)
    return [(row.batch, row.records, row.bytes, row.first_offset, row.last_offset) for row in drained]


def _changelog(ran: Ran) -> Any:
    present = changelog.columns(
        changelog.current(ran.spark, str(ran.output)), "id int, balance int"
    ).collect()
    balances = {row.id: row.balance for row in present}
    assert len(balances) == len(present)
    return balances


def _table(ran: Ran) -> Any:
    if not (ran.output / "table").exists():
        return []
    found = READERS[ran.given["format"]](ran.output / "table")
    return [(row["_offset"], row["value"], row["service"], row["at"]) for row in found]


def _table_of_changes(ran: Ran) -> Any:
    if not (ran.output / "table").exists():
        return {}
    rows = READERS["delta"](ran.output / "table")
    balances = {row["id"]: row["balance"] for row in rows}
    assert len(balances) == len(rows)
    return balances


BALANCE_SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "integer", "format": "int32"} for name in ("id", "balance")},
}


def _of_table(form: str, log: str, *, upsert: bool) -> Case:
    return Case(
        "table",
        lambda draws: {"": rows(draws, upsert=upsert)},
        lambda batches: model_of_table(batches, upsert=upsert),
        _table,
        ("plan.json", "table/**/*.parquet", log),
        {"format": form, "schema": "{folder}/schema.json", "upsert": str(upsert).lower()},
        {"schema.json": json.dumps(ROW_SCHEMA)},
        f"{form}-upsert" if upsert else form,
    )


USER_ROWS = [
    f"{language},{user}@example.org,{called},{user}"
    for one, (called, language) in USERS.items()
    for user in (one, *(f"{one}.{number}" for number in range(1, USERS_MAX)))
]
LATENESS, PAUSE, WITHIN = timedelta(minutes=10), timedelta(minutes=5), timedelta(minutes=10)
CASES = (
    Case(
        "logs",
        lambda draws: {"": log_lines(draws)},
        lambda given: model_of_logs(given, LATENESS),
        _logs,
        ("lines/batch=*", "counts/batch=*"),
    ),
    Case(
        "activity",
        lambda draws: {"": requests(draws)},
        lambda given: model_of_activity(given, LATENESS, PAUSE),
        _activity,
        ("sessions/batch=*", "page_views/batch=*", "state/sessions/batch=*"),
        {"lateness": "10m", "pause": "5m"},
        has_late=True,
    ),
    Case(
        "metrics",
        lambda draws: {"": measurements(draws)},
        model_of_metrics,
        _metrics,
        ("rollups/batch=*", "state/rollups/batch=*"),
        has_late=True,
    ),
    Case(
        "notifications",
        lambda draws: {"": notified(draws)},
        model_of_notifications,
        _notifications,
        ("messages/batch=*", "state/events/batch=*", "state/messages/batch=*"),
        files={"table.csv": "\n".join(["language,address,name,user", *USER_ROWS, ""])},
        has_late=True,
    ),
    Case(
        "join",
        lambda draws: {"orders": orders(draws), "payments": payments(draws)},
        lambda given: model_of_join(given, LATENESS, WITHIN),
        _join,
        ("settled/batch=*", "state/orders/batch=*", "state/payments/batch=*"),
        {"within": "10m"},
        {"table.csv": "country,customer,name\nEgypt,c0,Ann\nKenya,c1,Bob\n"},
        has_late=True,
    ),
    Case(
        "changelog",
        lambda draws: {"": changes(draws)},
        model_of_changelog,
        _changelog,
        ("state/waiting/batch=*", "versions/batch=*", "history/batch=*"),
    ),
    Case(
        "burst", lambda _: {"": ANYTHING}, model_of_burst, _burst, ("drained/batch=*",), {"period": "0.001"}
    ),
    _of_table("delta", "table/_delta_log/*.json", upsert=False),
    _of_table("delta", "table/_delta_log/*.json", upsert=True),
    _of_table("iceberg", "table/**/*.metadata.json", upsert=False),
    _of_table("iceberg", "table/**/*.metadata.json", upsert=True),
    _of_table("parquet", "table/_commits/*", upsert=False),
    Case(
        "table",
        lambda draws: {"": changes(draws, tables=1)},
        model_of_changelog,
        _table_of_changes,
        (
            "state/waiting/batch=*",
            "versions/batch=*",
            "plan.json",
            "table/**/*.parquet",
            "table/_delta_log/*.json",
        ),
        {"format": "delta", "input": "changes", "schema": "{folder}/schema.json"},
        {"schema.json": json.dumps(BALANCE_SCHEMA)},
        "changes",
    ),
)
