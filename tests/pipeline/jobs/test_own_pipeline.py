"""A pipeline in a file of the user's own, run by the command in a process, with the counts of its lines.

It reads through Spark's own connector; most other tests of pipelines read through Nilometer's.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from nilometer.pipeline.run.catalogue import write_copy
from support.pipeline.filled_topics import Sent

pytestmark = pytest.mark.spark

ACCESS = b'::1 - - [01/Jan/2024:00:00:00 +0000] "GET /a HTTP/1.1" 200 5'
QUICK = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def test_a_changed_copy_runs_through_sparks_own_connector_and_says_what_it_skipped(
    topics, tmp_path, connector_jars
):
    path, _ = write_copy("mine", "logs", tmp_path)
    text = path.read_text()
    changed = text.replace('"Lines by format": ', '"My lines": ')
    assert changed != text
    # A function of the file that runs in Spark's workers.
    changed = changed.replace(
        "    return recognise(records, formats, files=files)\n",
        "    shouted = F.udf(lambda text: shout(text))\n"
        '    return recognise(records, formats, files=files).withColumn("label", shouted("label"))\n'
        "\n\ndef shout(text):\n    return text.upper()\n",
    )
    path.write_text(changed)
    topic = topics.create(1, prefix="own")
    rows = [(ACCESS, b"a.log")] * 6 + [(b"zorp", b"b.log")] * 3 + [(b"dpkg", b"b.log"), (b"", b"b.log")]
    topics.send(topic, [Sent(0, None, line, headers=(("path", file),)) for line, file in rows])
    through = ["--connector", "kafka", "--connector-jars", str(connector_jars)]
    done = run(path, topic, topics, tmp_path, *through, "--report", str(tmp_path / "r.html"))
    assert done.returncode == 3, done.stderr
    assert "WARNING: 4 of 10 lines (40.0%) are of no known format" in done.stderr
    answer = json.loads(done.stdout)
    assert {row["format"]: row["lines"] for row in answer["results"]["My lines"]} == {
        "access": 6,
        "unparsed": 4,
        "blank": 1,
    }
    assert answer["offsets"][topic] == {"0": len(rows)}
    lines = answer["lines"]
    assert (lines["lines"], lines["recognised"], lines["unrecognised"]) == (11, 6, 4)
    assert lines["by_format"] == {"access": 6}
    assert {one["path"]: one["recognised"] for one in lines["files"]} == {"a.log": 6, "b.log": 0}
    assert set() < set(lines["samples"]) <= {"zorp", "dpkg"}
    page = (tmp_path / "r.html").read_text()
    assert "of no format (40.0%)" in page
    assert "b.log" in page

    other = topics.create(1, prefix="own")
    refused = run(path, other, topics, tmp_path)
    assert refused.returncode == 1
    assert f"has the checkpoint and the tables of topic {topic}, and this run reads {other}" in refused.stderr
    assert "--name NAME" in refused.stderr


def run(path, topic, topics, tmp_path, *more: str) -> subprocess.CompletedProcess[str]:
    where = ["--home", str(tmp_path / "home"), "--bootstrap-server", topics.bootstrap, "--topic", topic]
    command = [sys.executable, "-m", "nilometer.cli", "pipeline", "run", str(path), *where]
    options = ["--available-now", "--json", "--conf", QUICK, *more]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)
