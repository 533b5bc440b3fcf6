"""The commands of the page about upgrades, run in their order on two brokers, below a scratch root.

Only systemctl has a stand-in: it notes what is to be restarted, and the test restarts that broker with what
the environment has then.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nilometer.compiled import VARIABLE
from support.brokers.nilometer_cluster import NilometerCluster
from support.documentation.code_blocks import DOCS
from support.documentation.shell_samples import blocks
from support.empty_environment import NOT_SOURCES, REPOSITORY
from support.eventually import eventually
from support.kafka.apache_kafka import ensure_java, java_command
from support.upgrade.earlier_package import program

pytestmark = [pytest.mark.java, pytest.mark.long]

TOPIC, MARK, WAIT_S = "orders", "this is the later version", 60.0


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


class Machine:
    """A scratch root with the clone, the environment and the programs that the page names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._origin, self._programs, self._calls = root / "origin", root / "programs", root / "calls"
        self._make_origin()
        (root / "opt").mkdir()
        git(root, "clone", "--quiet", str(self._origin), str(root / "opt" / "nilometer-source"))
        environment = root / "opt" / "nilometer"
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, capture_output=True)
        (self.packages,) = (environment / "lib").glob("python*/site-packages")
        (own,) = (Path(sys.prefix) / "lib").glob("python*/site-packages")
        (self.packages / "packages-of-the-tests.pth").write_text(f"{own}\n")
        self._programs.mkdir()
        self._program("systemctl", f'echo "$@" >> {shlex.quote(str(self._calls))}')
        java = shlex.join(java_command("org.apache.kafka.tools.FeatureCommand"))
        self._program("kafka-features.sh", f'exec {java} "$@"')

    def _make_origin(self) -> None:
        self._origin.mkdir(parents=True)
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(REPOSITORY / name, self._origin)
        shutil.copytree(REPOSITORY / "src", self._origin / "src", ignore=NOT_SOURCES)
        git(self._origin, "init", "--quiet")
        self._commit("the former version")

    def publish_later_version(self) -> None:
        path = self._origin / "src" / "nilometer" / "broker" / "__init__.py"
        path.write_text(path.read_text() + f"\nimport sys\n\nprint({MARK!r}, file=sys.stderr)\n")
        self._commit("the later version")

    def _commit(self, message: str) -> None:
        git(self._origin, "add", "--all", "--force")
        git(self._origin, "commit", "--quiet", "--message", message)

    def _program(self, name: str, script: str) -> None:
        path = self._programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run(self, commands: str) -> subprocess.CompletedProcess[str]:
        """Run a block of the page, in which one command that fails is an error."""
        path = f"{self._programs}{os.pathsep}{self.root / 'opt' / 'nilometer' / 'bin'}"
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", commands.replace("/opt/", f"{self.root}/opt/")],
            env={**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}", "PIP_NO_DEPS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done

    def restarts(self) -> list[str]:
        """Return the calls of systemctl since the last look."""
        calls = self._calls.read_text().splitlines() if self._calls.exists() else []
        self._calls.unlink(missing_ok=True)
        return calls


def test_a_cluster_is_upgraded_and_goes_back_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "0")  # compiling twice would take two minutes
    ensure_java()
    machine = Machine(tmp_path / "machine")
    machine.run("/opt/nilometer/bin/pip install --quiet /opt/nilometer-source")
    cluster = NilometerCluster(tmp_path / "cluster", 2)
    for broker in cluster.brokers.values():
        broker.program = program(machine.packages)
    with cluster:
        cluster.create_topic(TOPIC, replication_factor=2)

        def page(beginning: str) -> str:
            """Return the block that begins so, with the addresses of the brokers."""
            (found,) = [
                one for one in blocks(DOCS / "how-to" / "upgrade.md") if one.lstrip().startswith(beginning)
            ]
            for number, broker in cluster.brokers.items():
                found = found.replace(f"broker{number}:9092", broker.bootstrap)
            return found

        def restart(number: int, commands: str) -> str:
            """Run commands that restart a broker; return what it prints as it starts."""
            machine.run(commands.replace("nilometer@1", f"nilometer@{number}"))
            assert machine.restarts() == [f"restart nilometer@{number}"]
            broker = cluster.brokers[number]
            before = len(broker.output)
            cluster.stop(number)
            cluster.start(number)
            return broker.output[before:]

        before, wait, balance = page("nilometer status"), page("until nilometer"), page("nilometer elect")
        eventually(lambda: cluster.controller() is not None, "a controller is known", WAIT_S)
        machine.run(wait)
        machine.run(before)
        machine.publish_later_version()
        machine.run(page("git -C /opt/nilometer-source rev-parse"))
        for number in cluster.brokers:
            assert MARK in restart(number, page("systemctl restart"))
            machine.run(wait)
        assert "nilometer.metadata.format" in machine.run(page("kafka-features.sh")).stdout
        machine.run(balance)

        assert MARK not in restart(1, page("git -C /opt/nilometer-source checkout"))
        machine.run(wait)
