"""The shipped ``notifications`` job against messages made in plain Python from the same events."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime

import pytest

from nilometer.pipeline.run.samples import sample_records, users
from support.pipeline.runs import AFTER_SAMPLES_MS, assert_reported, read_values, run_pipeline, send_values

pytestmark = pytest.mark.spark


def expected(values):
    """The ids of the messages, and their receivers."""
    known = {line.split(",")[0]: line.split(",") for line in users().splitlines()[1:]}
    tallies = defaultdict(lambda: [0, 0.0])
    for value in values:
        said = json.loads(value)
        at = datetime.fromisoformat(said["at"])
        window = at.replace(minute=at.minute // 10 * 10, second=0, microsecond=0)
        tally = tallies[said["user"], said["kind"], window]
        tally[0] += 1
        tally[1] += said["amount"] or 0
    messages = {}
    for (user, kind, window), (count, total) in tallies.items():
        if user not in known:
            continue
        rule = None
        if kind == "login-failed" and count >= 3:
            rule = "locked-out"
        if kind == "payment" and total >= 500:
            rule = "large-payments"
        if rule:
            messages[f"{rule}/{user}/{window:%Y-%m-%dT%H:%M:%S}Z"] = known[user][3]
    return messages


def failed_login(number):
    """Of one user, all of them in a window of their own."""
    said = {"id": f"f{number}", "user": "u8", "kind": "login-failed", "amount": None}
    return json.dumps({**said, "at": f"2024-05-01T20:01:0{number}Z"}).encode()


def test_messages_equal_those_made_in_plain_python_and_are_written_once(spark, topics, tmp_path):
    values = [one.value for one in sample_records("notifications", 1_500)]
    values += [failed_login(number) for number in range(4)]
    topic, messages = send_values(topics, [b"no json", *values], timestamp=AFTER_SAMPLES_MS), topics.create(2)
    table = tmp_path / "users.csv"
    table.write_text(users())
    given = {"to_topic": messages, "table": str(table), "options": {"maxOffsetsPerTrigger": "600"}}
    run_pipeline(spark, topics, "notifications", topic, tmp_path / "out", **given)
    more = [failed_login(4)]
    send_values(topics, more, topic, timestamp=AFTER_SAMPLES_MS)
    run_pipeline(spark, topics, "notifications", topic, tmp_path / "out", **given)
    sent = [json.loads(value) for value in read_values(spark, topics, messages)]
    wanted = expected([*values, *more])
    assert len(wanted) > 20
    assert {one["id"]: one["address"] for one in sent} == wanted
    assert len(sent) == len(wanted)  # each by the batch that reached the threshold
    german = [one for one in sent if one["user"] == "u3"]
    assert all(one["text"].startswith("Hallo User 3, ") for one in german)
    assert all("{" not in one["text"] for one in sent)
    assert_reported(spark, "notifications", tmp_path / "out")
