"""A metadata log that goes on with what a broker cannot fold: it serves nothing, and says why."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from nilometer.cluster.entries import Entry, decode_entry, encode_entry
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import BrokerFenced, ConfigChanged, ConfigResourceType, Record
from nilometer.coordination.local.store import LocalStore
from nilometer.identifiers import BrokerEpoch, BrokerId, EntryNumber
from nilometer.runtime import Runtime
from support.brokers.cluster_shell import Shell, answers
from support.eventually import eventually
from support.ports import HOST, is_free, neighbouring_ports

Make = Callable[[ClusterImage], bytes]


def append(folder: Path, make: Make) -> None:
    """Puts what ``make`` says behind the last entry of the metadata log."""

    async def work() -> None:
        store = LocalStore(Runtime.system(), str(folder))
        await store.open()
        try:
            image = ClusterImage()
            while entries := await store.read(image.number + 1, 100):
                for entry in entries:
                    image.apply_entry(EntryNumber(entry.number), decode_entry(entry.data))
            assert await store.append(image.number + 1, make(image))
        finally:
            await store.close()

    asyncio.run(work())


def signed(*records: Record) -> Make:
    def make(image: ClusterImage) -> bytes:
        controllership = image.controllership
        return encode_entry(
            Entry(
                controller_id=controllership.controller_id,
                controller_incarnation=controllership.incarnation,
                controller_epoch=controllership.controller_epoch,
                records=records,
            )
        )

    return make


def newer(image: ClusterImage) -> bytes:
    return b'{"version":99,"records":[]}'


def unknown_record(image: ClusterImage) -> bytes:
    return signed()(image).replace(b'"records":[]', b'"records":[{"type":"unknown"}]')


CANNOT_FOLD = {
    "newer": (newer, "format version 99"),
    "unreadable": (unknown_record, "cannot be read"),
    "broken": (signed(BrokerFenced(broker_id=BrokerId(9), broker_epoch=BrokerEpoch(1))), "does not fit"),
}


def test_a_running_broker_is_fenced_by_an_entry_that_it_cannot_fold(shell: Shell) -> None:
    port = neighbouring_ports(3)
    up = shell.run("up", "--brokers", "3", "--port", str(port), "--detach")
    assert up.returncode == 0, up.stderr
    pids = shell.pids()
    append(shell.data_dir / "coordination", newer)
    eventually(
        lambda: [one["state"] for one in shell.brokers()] == ["fenced"] * 3, "all say that they are fenced"
    )
    for one in shell.brokers():
        assert re.search("entry \\d+ of the metadata log .*format version 99.*restart", one["reason"])
    assert shell.pids() == pids, "their processes stay: nothing is gained by starting the same version again"
    eventually(lambda: all(is_free(port + number) for number in range(3)), "no client is served")
    assert shell.run("status").returncode == 3
    again = shell.run("up", "--detach")
    assert again.returncode == 1
    assert "fenced" in again.stderr and "format version 99" in again.stderr
    assert shell.run("down").stdout == "Stopped 3 brokers.\n"


@pytest.mark.parametrize("kind", CANNOT_FOLD)
def test_a_broker_does_not_come_up_behind_an_entry_that_it_cannot_fold(shell: Shell, kind: str) -> None:
    make, said = CANNOT_FOLD[kind]
    port = neighbouring_ports(1)
    assert shell.run("up", "--port", str(port), "--detach").returncode == 0
    assert shell.run("down").returncode == 0
    append(shell.data_dir / "coordination", make)
    up = shell.run("up", "--detach")
    assert up.returncode == 1
    assert said in up.stderr and "broker 1 is not ready" in up.stderr
    assert "Traceback" not in up.stderr
    (one,) = shell.brokers()
    assert (one["state"], one["pid"]) == ("down", None)
    assert said in one["reason"]
    assert "Traceback" not in (shell.data_dir / "broker-1" / "broker.log").read_text()


def test_a_folder_that_holds_a_contradiction_starts_again(shell: Shell) -> None:
    """As it was written while the controller judged the keys of a topic one by one."""
    port = neighbouring_ports(3)
    assert shell.run("up", "--brokers", "3", "--port", str(port), "--detach").returncode == 0
    bootstrap = ",".join(f"{HOST}:{port + number}" for number in range(3))
    created = shell_topic(shell, bootstrap, "create", "t", "--partitions", "3", "--replication-factor", "3")
    assert created == 0
    assert shell.run("down").returncode == 0

    def contradiction(image: ClusterImage) -> bytes:
        texts = {"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "1", "retention.ms": "a week"}
        return signed(
            *(
                ConfigChanged(resource_type=ConfigResourceType.TOPIC, resource_name="t", key=key, value=text)
                for key, text in texts.items()
            )
        )(image)

    append(shell.data_dir / "coordination", contradiction)
    up = shell.run("up", "--detach")
    assert up.returncode == 0, up.stderr
    assert all(answers(port + number) for number in range(3))
    for number in (1, 2, 3):
        log = (shell.data_dir / f"broker-{number}" / "broker.log").read_text()
        for key in ("max.compaction.lag.ms", "retention.ms"):
            assert re.search(rf"This broker cannot apply a setting of topic t.*{re.escape(key)}", log)
        assert "Traceback" not in log


def test_up_fails_where_a_broker_that_runs_does_not_answer(shell: Shell) -> None:
    """It was ready once, and has been fenced since: up says so even with nothing to start."""
    port = neighbouring_ports(1)
    assert shell.run("up", "--port", str(port), "--detach").returncode == 0
    (pid,) = shell.pids()
    assert pid is not None
    (shell.data_dir / "broker-1" / "status.json").write_text(
        json.dumps({"state": "fenced", "reason": "a test says so"})
    )
    up = shell.run("up", "--detach")
    assert (up.returncode, up.stdout) == (1, "")
    assert "broker 1 is fenced: a test says so" in up.stderr
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: shell.pids() == [None], "it has ended")
    assert shell.run("up", "--detach").returncode == 0, "a broker that starts takes back what it said"


def shell_topic(shell: Shell, bootstrap: str, *arguments: str) -> int:
    import subprocess
    import sys

    command = [str(Path(sys.executable).with_name("nilometer")), "topic", *arguments]
    return subprocess.run(
        [*command, "--bootstrap-server", bootstrap], capture_output=True, check=False, timeout=60
    ).returncode
