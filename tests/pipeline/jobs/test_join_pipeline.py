"""The shipped ``join`` job against orders and payments met in plain Python."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta

import pytest

from nilometer.pipeline.run.samples import customers, sample_records
from nilometer.pipeline.shipped import join
from support.pipeline.runs import (
    AFTER_SAMPLES_MS,
    assert_reported,
    forget_last_commit,
    run_pipeline,
    send_values,
)

pytestmark = pytest.mark.spark

HOUR = timedelta(hours=1)


def expected(orders, payments, table):
    names = dict(line.split(",", 1) for line in table.splitlines()[1:])
    time = datetime.fromisoformat
    newest = [max(time(one["at"]) for one in side) for side in (orders, payments)]
    watermark = min(newest) - join.Settings().lateness
    settled = Counter()
    for order in orders:
        at = time(order["at"])
        name, _, country = names.get(order["customer"], ",").partition(",")
        who = (order["order"], name or None, country or None)
        mine = [
            one for one in payments if one["order"] == order["order"] and at <= time(one["at"]) <= at + HOUR
        ]
        for one in mine:
            settled[*who, one["payment"], (time(one["at"]) - at).total_seconds()] += 1
        if not mine and at + HOUR < watermark:
            settled[*who, None, None] += 1
    return settled


def found(spark, output):
    rows = spark.read.parquet(f"{output}/settled").collect()
    return Counter(
        (
            row.order,
            row.name,
            row.country,
            row.payment,
            None if row.seconds is None else round(row.seconds, 3),
        )
        for row in rows
    )


def test_orders_meet_their_payments_as_they_do_in_plain_python(spark, topics, tmp_path):
    sides: dict[str, list[bytes]] = {"orders": [], "payments": []}
    for one in sample_records("join", 1_200):
        sides[one.topic].append(one.value)
    names = [
        send_values(topics, [*values, b"no json"], timestamp=AFTER_SAMPLES_MS) for values in sides.values()
    ]
    table = tmp_path / "customers.csv"
    table.write_text(customers())
    given = {"table": str(table), "options": {"maxOffsetsPerTrigger": "500"}}
    run_pipeline(spark, topics, "join", ",".join(names), tmp_path / "out", **given)
    orders, payments = ([json.loads(value) for value in values] for values in sides.values())
    wanted = expected(orders, payments, customers())
    assert sum(one[3] is None for one in wanted) > 50
    assert sum(one[1] is None for one in wanted) > 10
    assert found(spark, tmp_path / "out") == wanted
    forget_last_commit(tmp_path / "out")
    run_pipeline(spark, topics, "join", ",".join(names), tmp_path / "out", **given)
    assert found(spark, tmp_path / "out") == wanted
    assert_reported(spark, "join", tmp_path / "out")
