"""Topics with whatever Kafka's format allows in them: three sources give the rows that were written.

Spark's own connector, ``nilometer`` and ``nilometer-log`` read the same generated logs, whole and in part, of
either isolation level. A failure prints the command that plays it again.
"""

from __future__ import annotations

import json
import os
import random
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as F

from support.brokers.nilometer_broker import NilometerBroker
from support.logs.generated_topics import Row, generated_log
from support.pipeline.checkpoints import wait_for_checkpoint

pytestmark = pytest.mark.spark

SEED, TOPICS = map(int, os.environ.get("GENERATED_TOPICS", "1:6").split(":"))
ROUNDS_LONG, TOPICS_LONG = 10, 50
SETTINGS = {"replica.high.watermark.checkpoint.interval.ms": "100", "log.cleaner.enable": "false"}
CONFIG = {"retention.ms": "-1", "cleanup.policy": "compact"}
"""Of a topic that is compacted gaps are no damage; but what was written must stay to be compared."""


@pytest.mark.long
@pytest.mark.timeout(900)  # the first reading compiles, which on a busy machine takes a minute
def test_three_sources_give_the_rows_of_generated_topics(spark, tmp_path):
    Round(spark, tmp_path, SEED, TOPICS).play()


@pytest.mark.soak
def test_three_sources_give_the_rows_of_many_generated_topics(spark, tmp_path):
    """500 topics; GENERATED_TOPICS=11:0 goes on with the seeds from 11 on."""
    for seed in range(SEED, SEED + ROUNDS_LONG):
        began = time.monotonic()
        rows = Round(spark, tmp_path / f"{seed}", seed, TOPICS_LONG).play()
        print(f"seed {seed}: {TOPICS_LONG} topics, {rows} rows compared, {time.monotonic() - began:.0f} s")


class Round:
    """Topics of one seed, read in several ways."""

    def __init__(self, spark, folder, seed, topics):
        self._spark = spark
        self._seed = seed
        self._chance = random.Random(seed)
        self._folder = folder
        self._names = [f"generated-{seed}-{number}" for number in range(topics)]
        self._logs = {name: generated_log(random.Random(f"{seed} {name}")) for name in self._names}
        self._compared = 0

    def play(self):
        """How many rows were compared."""
        with NilometerBroker(self._folder / "data", SETTINGS) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            made = admin.create_topics([NewTopic(name, 1, 1, config=CONFIG) for name in self._names])
            for future in made.values():
                future.result(60)
            broker.stop()
            for name, log in self._logs.items():
                log.write(broker.data_dir / f"{name}-0")
            (broker.data_dir / ".kafka_cleanshutdown").unlink(missing_ok=True)  # check and index
            broker.start()
            for name, log in self._logs.items():
                wait_for_checkpoint(broker.data_dir, name, {0: log.end})
            for committed in (False, True):
                self._compare(broker, committed, {}, self._all)
                ways = self._part, self._since, self._filtered
                self._compare(broker, committed, *self._chance.choice(ways)(committed))
        return self._compared

    # --- what to read, and what that must give

    def _all(self, log, _name, committed):
        return log.readable(committed)

    def _part(self, committed):
        """Between two offsets of each topic, at any place: in a gap, in a batch, behind it."""
        bounds = {}
        for name, log in self._logs.items():
            end = log.readable_end(committed)
            first = self._chance.randint(log.start, end)
            bounds[name] = (first, self._chance.randint(first, end))
        starts = json.dumps({name: {"0": first} for name, (first, _) in bounds.items()})
        ends = json.dumps({name: {"0": last} for name, (_, last) in bounds.items()})

        def expected(log, name, committed):
            first, last = bounds[name]
            return [row for row in log.readable(committed) if first <= row.offset < last]

        return {"startingOffsets": starts, "endingOffsets": ends}, expected

    def _since(self, committed):
        """From the first record that is as late, in the order of offsets."""
        since = self._chance.choice([0, 1, 2, 1_700_000_000_000, 1_700_000_000_321, 4_000_000_000_499])

        def expected(log, _name, committed):
            end = log.readable_end(committed)
            late = [offset for offset, timestamp in log.times if timestamp >= since and offset < end]
            first = late[0] if late else log.end
            return [row for row in log.readable(committed) if row.offset >= first]

        return {"startingTimestamp": str(since), "startingOffsetsByTimestampStrategy": "latest"}, expected

    def _filtered(self, _committed):
        """Rows as late as a time, which the sources take for a bound on what to read."""
        since = self._chance.choice([-86_400_000, -1, 0, 1, 1_700_000_000_000])

        def expected(log, _name, committed):
            return [row for row in log.readable(committed) if row.timestamp >= since]

        return {"pushDownFilters": "true"}, expected, F.col("timestamp") >= F.timestamp_millis(F.lit(since))

    # --- reading and comparing

    def _compare(self, broker, committed, given, expected, condition=None):
        chance = self._chance
        options = {
            "subscribe": ",".join(self._names),
            "includeHeaders": "true",
            "kafka.isolation.level": "read_committed" if committed else "read_uncommitted",
            **given,
        }
        if chance.random() < 0.3:
            options["maxRecordsPerPartition"] = str(chance.choice([200, 1_000]))
        from_broker = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "kafka.max.partition.fetch.bytes": str(chance.choice([300, 70_000, 8 << 20])),
        }
        from_folder = {
            "path": str(broker.data_dir),
            "bytesPerPartition": str(chance.choice([20_000, 64 << 20, 64 << 20])),
        }
        for source, own in (
            ("nilometer-log", from_folder),
            ("nilometer", from_broker),
            ("kafka", from_broker),
        ):
            if source == "kafka":
                options.pop("pushDownFilters", None)
            found = self._read(source, {**options, **own}, condition)
            for name, log in self._logs.items():
                self._hold(source, name, log, found.get(name, []), expected(log, name, committed), options)

    def _read(self, source, options, condition):
        pushed = "pushDownFilters" in options
        try:
            self._spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
            frame = self._spark.read.format(source).options(**options).load()
            frame = frame if condition is None else frame.where(condition)
            rows = frame.withColumn("micros", F.unix_micros("timestamp")).drop("timestamp").collect()
        except Exception as error:
            error.add_note(self._replay(source, options))
            raise
        finally:
            self._spark.conf.set("spark.sql.python.filterPushdown.enabled", False)
        found = {}
        for row in sorted(rows, key=lambda row: (row.topic, row.offset)):
            headers = None
            if row.headers is not None:
                headers = tuple((one.key, _bytes(one.value)) for one in row.headers)
            found.setdefault(row.topic, []).append(
                Row(
                    row.offset,
                    _bytes(row.key),
                    _bytes(row.value),
                    row.micros / 1000,
                    row.timestampType,
                    headers,
                )
            )
        return found

    def _hold(self, source, name, log, found, expected, options):
        self._compared += len(expected)
        if found == expected:
            return
        pairs = zip([*found, None], [*expected, None], strict=False)
        first = next(pair for pair in pairs if pair[0] != pair[1])
        raise AssertionError(
            f"{source} gives {len(found)} rows of {name}, {len(expected)} expected; they differ first: "
            f"{_short(first[0])} in place of {_short(first[1])}\n"
            + "\n".join(
                [f"log from {log.start} to {log.end}, stable up to {log.last_stable}", *log.operations]
            )
            + f"\n{self._replay(source, options)}"
        )

    def _replay(self, source, options):
        again = f"GENERATED_TOPICS={self._seed}:{len(self._names)} .venv/bin/pytest"
        return f"{source} with {options}\nagain: {again} tests/pipeline/connectors -k three_sources_give"


def _bytes(value):
    return None if value is None else bytes(value)


def _short(row):
    return f"{row}"[:400]
