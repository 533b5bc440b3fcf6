"""The tutorial and the commands of a backup, run in their order: each prints what its page says.

Ports of the pages may be in use: others take their place.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from support.documentation.code_blocks import DOCS, files_of
from support.documentation.shell_samples import Sample, missing_lines, samples_of, samples_of_section
from support.eventually import eventually
from support.ports import neighbouring_ports

WAIT_S = 60
Run = Callable[[Sample], str]


@pytest.fixture
def port() -> int:
    return neighbouring_ports(3)


@pytest.fixture
def run(tmp_path: Path, port: int) -> Iterator[Run]:
    """Run a sample; fail unless it ends well and prints what the page says."""
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "NILOMETER_BOOTSTRAP_SERVER": f"127.0.0.1:{port}",
    }

    def bash(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def sample(one: Sample) -> str:
        command = with_ports(one.command, port)
        if command.startswith("nilometer status"):  # its state is reached soon, not at once
            eventually(
                lambda: missing_lines(one.printed, bash(command).stdout.splitlines()) == [], command, WAIT_S
            )
            return ""
        done = bash(command)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert missing_lines(one.printed, done.stdout.splitlines()) == [], f"{command}:\n{done.stdout}"
        if "wc -l" in command:  # a number that counts
            assert done.stdout.split() == one.printed[0].split()
        return done.stdout

    yield sample
    if (tmp_path / ".nilometer").exists():
        assert bash("nilometer down").returncode == 0


def with_ports(text: str, port: int) -> str:
    """Return the text with the ports of the pages replaced, and with one for the brokers that are made."""
    if text.startswith("nilometer up") and "--port" not in text:
        text += f" --port {port}"
    for number in range(3):
        text = text.replace(f"127.0.0.1:{9092 + number}", f"127.0.0.1:{port + number}")
    return text


@pytest.mark.long
def test_the_tutorial(run: Run, port: int, tmp_path: Path) -> None:
    page = DOCS / "tutorial.md"
    install, activate, *samples = samples_of(page.read_text(encoding="utf-8"))
    assert install.command == "python3 -m venv .venv && .venv/bin/pip install ."
    assert activate.command == "source .venv/bin/activate"
    assert len(samples) > 15
    for name, text in files_of(page.name).items():
        (tmp_path / name).write_text(with_ports(text, port))
    for sample in samples:
        run(sample)
    assert not (tmp_path / ".nilometer").exists()


@pytest.mark.long
@pytest.mark.spark
def test_a_backup_is_restored(run: Run, port: int) -> None:
    page = DOCS / "how-to" / "backup.md"
    run(Sample("nilometer up --detach", []))
    run(Sample("nilometer topic create orders --partitions 1", []))
    run(Sample("seq 1 100 | nilometer produce orders", []))
    whole, one_topic = "A cluster on one machine", "One topic, while it is in use"
    backup, restore = samples_of_section(page, whole)[:3], samples_of_section(page, whole)[3:]
    in_copy = samples_of_section(page, "Look into a copy")
    look, back = in_copy[:4], in_copy[4:]
    for sample in backup:
        run(sample)
    run(Sample("seq 101 200 | nilometer produce orders", []))  # this is not in the backup
    for sample in restore:
        run(sample)
    assert read(run, "orders") == [str(number) for number in range(1, 101)]

    run(Sample("seq 101 110 | nilometer produce orders", []))
    for sample in look:
        run(sample)
    assert read(run, "orders") == [str(number) for number in range(1, 101)], "of the copy"
    for sample in back:
        run(sample)
    assert read(run, "orders") == [str(number) for number in range(1, 111)], "of the original"

    abort_one(port)
    run(Sample("""echo '{"value": "old", "timestamp": 1000}' | nilometer produce orders --json-lines""", []))
    for sample in samples_of_section(page, one_topic):
        run(sample)
    kept = [*(str(number) for number in range(1, 111)), "old"]
    assert read(run, "orders-restored") == kept, "without what was aborted"
    config = run(Sample("nilometer topic config orders-restored --json", []))
    assert json.loads(config)["configs"]["retention.ms"]["value"] == "-1", "old records stay"
    dump, audit = samples_of_section(page, "Check a copy")
    assert "base_offset: 0" in run(dump)
    assert "no errors found" in run(audit)


def abort_one(port: int) -> None:
    """Leave a record of an aborted transaction in the topic."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "transactional.id": "aborts", "log_level": 0}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("orders", b"aborted")
    producer.flush(WAIT_S)
    producer.abort_transaction(WAIT_S)


def read(run: Run, topic: str) -> list[str]:
    return run(Sample(f"nilometer consume {topic} --from-beginning --until-end", [])).split()
