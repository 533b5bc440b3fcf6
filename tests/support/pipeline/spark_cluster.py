"""A standalone Spark cluster on this machine: a master and workers as processes, which tests can kill.

It is started from the installed pyspark like by Spark's scripts. A worker and its executors form a process
group and are killed together, like the processes of a machine that fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pyspark

from ..eventually import eventually
from ..ports import HOST, free_ports
from .other_machine import OtherMachine

HOME = Path(pyspark.__file__).parent
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXECUTOR_MEMORY = "600m"


def event_log(folder: Path) -> dict[str, str]:
    """Return the settings of a session that writes what `task_seconds` reads to a new folder."""
    folder.mkdir()
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }


def task_seconds(folder: Path) -> dict[str, list[float]]:
    """Return how long the tasks of each executor took, in the order in which they began."""
    (path,) = folder.iterdir()
    events = map(json.loads, path.read_text().splitlines())
    tasks = [one["Task Info"] for one in events if one["Event"] == "SparkListenerTaskEnd"]
    found: dict[str, list[float]] = {}
    for one in sorted(tasks, key=lambda one: one["Launch Time"]):
        took_s = (one["Finish Time"] - one["Launch Time"]) / 1000
        found.setdefault(one["Executor ID"], []).append(took_s)
    return found


class SparkCluster:
    """`with SparkCluster(folder) as cluster: … cluster.master`; `kill_worker(0)` as wanted."""

    def __init__(self, folder: Path, workers: int = 2, *, machine: OtherMachine | None = None) -> None:
        """With ``machine``, master and workers are processes of it, and not of this one."""
        self._folder = folder
        self._machine = machine
        self._port, self._ui_port, *self._worker_ports = free_ports(2 + workers)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self._port}"

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a session on this cluster: executors that fit the workers and start fast."""
        return {
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.extraJavaOptions": JVM,
            "spark.driver.extraJavaOptions": JVM,
        }

    def work_dir(self, number: int) -> Path:
        """Return the folder of a worker; its executors have `<application>/<executor>` in it."""
        return self._folder / f"worker-{number}"

    def alive_workers(self) -> int:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._ui_port}/json/", timeout=10) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (urllib.error.URLError, ConnectionError, json.JSONDecodeError):
            return 0  # it is starting: there is no response yet, or one that is not JSON

    def start_worker(self, number: int) -> None:
        """Start a worker, unless it runs."""
        if f"worker-{number}" in self._processes:
            return
        more = ["--cores", "1", "--memory", "1g", "--webui-port", str(self._worker_ports[number])]
        more += ["--work-dir", str(self.work_dir(number)), self.master]
        self._launch(f"worker-{number}", "worker.Worker", *more)

    def kill_worker(self, number: int) -> None:
        self._kill(f"worker-{number}")

    def __enter__(self) -> SparkCluster:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._launch(
                "master", "master.Master", "--port", str(self._port), "--webui-port", str(self._ui_port)
            )
            for number in range(len(self._worker_ports)):
                self.start_worker(number)
            wanted = len(self._worker_ports)
            eventually(lambda: self.alive_workers() == wanted, "all workers are up", READY_TIMEOUT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self._kill(name)

    def _launch(self, name: str, main_class: str, *arguments: str) -> None:
        machine = self._machine
        home = HOME if machine is None else machine.packages / "pyspark"
        python = Path(sys.executable) if machine is None else machine.python
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JVM,
            "PATH": f"{python.parent}:{os.environ['PATH']}",  # executors start "python3"
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main_class}"]
        if machine is not None:
            command = [*machine.command, *command]
        with (self._folder / f"{name}.out").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [*command, "--host", HOST, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self._folder,
                start_new_session=True,
            )

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_TIMEOUT_S)
