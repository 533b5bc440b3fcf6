"""`nilometer queue`: from the first job to the dead ones that are put again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

import nilometer as package
from support.command_line import Nilometer
from support.command_shell import CommandShell
from support.eventually import eventually


@pytest.fixture
def queue(nilometer: Nilometer, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("_", "-")
    made = nilometer("queue", "create", name, "--max-deliveries", "2", "--partitions", "1")
    assert (made.code, made.out) == (0, f"Queue {name} is there: at most 2 deliveries, locks of 30 s.\n")
    return name


@pytest.mark.quick
def test_jobs_from_put_to_redrive(nilometer: Nilometer, queue: str, tmp_path: Path) -> None:
    assert nilometer("queue", "create", queue, "--max-deliveries", "2").code == 0
    other = nilometer("queue", "create", queue, "--max-deliveries", "3")
    assert other.code == 1 and "is 2, not 3" in other.err

    assert nilometer("queue", "put", queue, "good", "bad", "--key", "k").code == 0
    stats = nilometer("queue", "stats", queue, "--json").document
    assert stats == {"queue": queue, "waiting": 2, "dead": 0, "postponed": 0}
    printed = tmp_path / "printed"
    script = (
        f'read job; echo "$job $NILOMETER_JOB_KEY $NILOMETER_JOB_DELIVERIES" >>{printed}; test "$job" != bad'
    )
    options = ("--until-idle", "1", "--retry-pause", "0", "--concurrency", "1")
    worked = nilometer("queue", "work", queue, "--exec", script, *options, "--json")
    assert (worked.code, worked.document) == (
        0,
        {"accepted": 1, "released": 1, "postponed": 0, "buried": 1, "lost": 0},
    )
    assert printed.read_text().splitlines() == ["good k 1", "bad k 1", "bad k 2"]

    def listed() -> list[str]:
        return nilometer("queue", "dead", "list", queue, "--json").lines

    eventually(lambda: bool(listed()), "the dead letter is written")
    [letter] = [json.loads(line) for line in listed()]
    assert (letter["value"], letter["key"], letter["deliveries"]) == ("bad", "k", 2)
    assert letter["reason"]
    assert "bad" in nilometer("queue", "dead", "list", queue).out
    assert nilometer("queue", "redrive", queue).out == f"Put 1 dead job of {queue} again.\n"
    assert nilometer("queue", "dead", "list", queue, "--json").out == ""
    worked = nilometer("queue", "work", queue, "--exec", "cat >/dev/null", *options)
    assert (worked.code, worked.err.splitlines()[-1]) == (
        0,
        "1 accepted, 0 released, 0 postponed, 0 buried, 0 lost",
    )
    shown = nilometer("queue", "stats", queue)
    assert shown.code == 0 and queue in shown.out


def test_a_job_that_fails_waits_in_a_retry_topic(nilometer: Nilometer, tmp_path: Path) -> None:
    pauses = ("--retry-after", "1", "--retry-after", "86400")
    made = nilometer("queue", "create", "later", "--max-deliveries", "2", *pauses)
    said = "at most 2 deliveries, again after 1 s, again after 86400 s, locks of 30 s"
    assert (made.code, made.out) == (0, f"Queue later is there: {said}.\n")
    wrong = nilometer("queue", "create", "other", "--retry-after", "60", "--retry-after", "1")
    assert wrong.code == 1 and "begins with the shortest pause, not 60 s, 1 s" in wrong.err
    assert nilometer("queue", "put", "later", "job").code == 0
    counted = tmp_path / "counted"
    script = f"echo $NILOMETER_JOB_ROUNDS $NILOMETER_JOB_DELIVERIES >>{counted}; false"

    def work() -> None:
        options = ("--exec", script, "--retry-pause", "0", "--until-idle", "0.5", "--json")
        assert nilometer("queue", "work", "later", *options).code == 0

    def has_waited_twice() -> bool:
        work()
        return len(counted.read_text().splitlines()) >= 4

    eventually(has_waited_twice, "it is put again after a second")
    assert counted.read_text().splitlines() == ["0 1", "0 2", "1 1", "1 2"]
    stats = nilometer("queue", "stats", "later", "--json").document
    assert (stats["waiting"], stats["dead"], stats["postponed"]) == (0, 0, 1)


def test_lines_of_standard_input_are_jobs(shell: CommandShell, nilometer: Nilometer, queue: str) -> None:
    command = shell.command("queue", "put", queue)
    lines = b'{"a": 1}\n\n\xff\xfe\r\nlast'
    done = subprocess.run(command, input=lines, env=shell.environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, f"Put 4 jobs into {queue}.\n".encode())
    with package.connect(shell.environment["NILOMETER_BOOTSTRAP_SERVER"]) as kafka:
        found = [record.value for record in kafka.consume(queue, until_end=True)]
    assert found == [b'{"a": 1}', b"", b"\xff\xfe", b"last"]
    missing = nilometer("queue", "put", "no-such-queue", "job")
    assert missing.code == 1 and "no-such-queue" in missing.err


def test_a_signal_lets_commands_finish(
    shell: CommandShell, nilometer: Nilometer, queue: str, tmp_path: Path
) -> None:
    assert nilometer("queue", "put", queue, "one", "two").code == 0
    begun, ending = tmp_path / "begun", tmp_path / "ending"
    os.mkfifo(ending)
    script = f"echo >>{begun}; read go <{ending}"
    command = shell.command("queue", "work", queue, "--exec", script, "--concurrency", "1", "--json")
    with subprocess.Popen(command, env=shell.environment, stdout=subprocess.PIPE, text=True) as process:
        eventually(begun.exists, "a command runs")
        process.send_signal(signal.SIGTERM)
        ending.write_text("go\n")
        out, _ = process.communicate(timeout=120)
    assert (process.returncode, json.loads(out)["accepted"]) == (0, 1)
    assert begun.read_text() == "\n"
    assert nilometer("queue", "stats", queue, "--json").document["waiting"] == 1


def test_a_command_beyond_its_time_limit_is_ended(nilometer: Nilometer, queue: str, tmp_path: Path) -> None:
    assert nilometer("queue", "put", queue, "slow").code == 0
    number = tmp_path / "number"
    script = f"if test -e {number}; then exit 0; fi; echo $$ >{number}; sleep 3600"
    options = ("--time-limit", "1", "--until-idle", "2", "--retry-pause", "0")
    worked = nilometer("queue", "work", queue, "--exec", script, *options, "--json")
    assert (worked.code, worked.document["accepted"], worked.document["released"]) == (0, 1, 1)
    with pytest.raises(ProcessLookupError):
        os.killpg(int(number.read_text()), 0)
