"""A worker of Kafka Connect that runs one connector, and its REST interface.

The worker keeps its state in topics of the cluster, and writes records and offsets in one transaction. Its
REST interface is on this machine's loopback address and needs a password that is made for each run; secrets
are in the worker's environment and never in its topics. The worker ends with this process, even by SIGKILL.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.spark.java import require_java

START_TIMEOUT_S = 180.0
"""A JVM on a busy machine, and the session of a worker that was killed a moment ago."""
STOP_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 60.0
ROW_MAX = 64 * 1024 * 1024
"""The maximum size of a record that is sent; the topic's max.message.bytes is what limits it."""
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
CONNECTOR = "capture"
WHAT = ("table.include.list", "transforms.topic.replacement")
"""The settings of a connector that say what it captures, and into which topic: they stay."""
TOPIC_ID = "nilometer.topic.id"
"""A setting that no connector knows: the id of the topic that has all that was captured."""
STATE_TOPICS = ("configs", "offsets", "status", "history")
_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
logger.debezium.name = io.debezium
logger.debezium.level = info
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
"""
_LOGIN = """KafkaConnect {{
  org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule required file="{file}";
}};
"""


def state_topic(name: str, kind: str) -> str:
    return f"nilometer-capture-{name}-{kind}"


class Worker:
    """Use as ``with Worker(name, jars, client, environment, log) as worker``."""

    def __init__(
        self, name: str, jars: Path, client: Mapping[str, str], environment: Mapping[str, str], log: Path
    ) -> None:
        """``client`` are the settings of the connection to the cluster; the log's folder must exist."""
        self._name = name
        self._jars = jars
        self._client = dict(client)
        self._environment = dict(environment)
        self._log = log
        self._folder = Path()
        self._password = secrets.token_urlsafe()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Worker:
        """Start the worker. Raises PipelineError."""
        java = require_java()
        self._folder = Path(tempfile.mkdtemp(prefix="nilometer-capture-"))
        port = _free_port()
        self._address = f"http://127.0.0.1:{port}"
        write = self._write
        login = write("login", _LOGIN.format(file=write("users", f"nilometer={self._password}\n")))
        log4j = write("log4j2.properties", _LOG4J.format(log=self._log.resolve()))
        settings = write("worker.properties", _properties(self._settings()))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *_end_with_parent(), java, f"-Djava.security.auth.login.config={login}",
                    f"-Dlog4j2.configurationFile={log4j.as_uri()}", "-cp", f"{self._jars}/*",
                    "org.apache.kafka.connect.cli.ConnectDistributed", str(settings),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **self._environment, **self._secrets()},
                start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, connector: Mapping[str, str]) -> None:
        """Have the worker run the connector with these settings.

        Raises PipelineError, also if it has run with another table or topic before.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self._check_same(connector)
                self._ask("PUT", f"/connectors/{CONNECTOR}/config", dict(connector))
            except urllib.error.HTTPError as refused:
                reason = _refusal(refused)
                if refused.code == 400:
                    raise PipelineError(reason) from None
            except OSError as error:
                reason = str(error)
            else:
                return
            self.check()
            if time.monotonic() > deadline:
                raise PipelineError(f"Kafka Connect does not start ({reason}): its log is {self._log}")
            time.sleep(0.5)

    def _check_same(self, connector: Mapping[str, str]) -> None:
        try:
            before = self._ask("GET", f"/connectors/{CONNECTOR}/config")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return
        if changed := [before[key] for key in WHAT if before.get(key) != connector[key]]:
            raise PipelineError(
                f"the capture {self._name} is of {changed[0]}: choose another name with --slot, or remove it "
                "with --drop"
            )
        if before.get(TOPIC_ID, connector[TOPIC_ID]) != connector[TOPIC_ID]:
            raise PipelineError(
                f"topic {connector[WHAT[1]]} was deleted and created again: it does not have what the "
                f"capture {self._name} has written. Remove the capture with --drop, and begin again with "
                "all rows"
            )

    def check(self) -> None:
        """Raise PipelineError if the process has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise PipelineError(f"Kafka Connect ended: {_last_error(self._log)} (log: {self._log})")

    def failure(self) -> str | None:
        """Return the trace of Java with which the connector or its task failed, or None."""
        for one in self._states():
            if one["state"] == "FAILED":
                return one.get("trace") or "no reason is given"
        return None

    def restart_failed(self) -> None:
        """Have the connector and its task run again if they have failed: from the stored position.

        Raises PipelineError if the worker has ended, or refuses it.
        """
        try:
            self._ask("POST", f"/connectors/{CONNECTOR}/restart?includeTasks=true&onlyFailed=true", {})
        except OSError as refused:
            self.check()
            raise PipelineError(f"Kafka Connect does not restart the capture: {refused}") from None

    def runs(self) -> bool:
        return [one["state"] for one in self._states()] == ["RUNNING", "RUNNING"]

    def _states(self) -> list[Mapping[str, Any]]:
        """Return the states of the connector and its task in this worker, not those of an earlier one."""
        status = self._get("/status", {"connector": {}, "tasks": []})
        return [
            one
            for one in (status["connector"], *status["tasks"])
            if f"http://{one.get('worker_id')}" == self._address
        ]

    def offset(self) -> Mapping[str, Any] | None:
        """Return the position that the connector has stored in the cluster, with all records before it."""
        found = self._get("/offsets", {"offsets": []})["offsets"]
        return found[0]["offset"] if found else None

    def _get(self, path: str, nothing: Mapping[str, Any]) -> Any:
        """Return what is asked for; ``nothing`` while the worker rebalances or has nothing yet."""
        try:
            return self._ask("GET", f"/connectors/{CONNECTOR}{path}")
        except OSError:
            self.check()
            return nothing

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        user = base64.b64encode(f"nilometer:{self._password}".encode()).decode()
        request = urllib.request.Request(
            self._address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Basic {user}"},
        )
        with _OPENER.open(request, timeout=REQUEST_TIMEOUT_S) as response:
            return json.loads(response.read() or b"null")

    def _settings(self) -> dict[str, str]:
        json_converter = "org.apache.kafka.connect.json.JsonConverter"
        kinds = ("config", "offset", "status")
        return {
            **{f"{prefix}{key}": value for prefix in ("", "producer.", "consumer.", "admin.")
               for key, value in self._client.items()},
            "group.id": f"nilometer-capture-{self._name}",
            "listeners": self._address,
            **{f"{one}.storage.topic": state_topic(self._name, topic)
               for one, topic in zip(kinds, STATE_TOPICS, strict=False)},
            **{f"{one}.storage.replication.factor": "-1" for one in kinds},
            **{f"{one}.storage.partitions": "1" for one in kinds[1:]},
            "exactly.once.source.support": "enabled",
            "scheduled.rebalance.max.delay.ms": "0",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "2000",
            "offset.flush.interval.ms": "1000",
            "plugin.discovery": "service_load",
            "key.converter": json_converter,
            "value.converter": json_converter,
            "header.converter": json_converter,
            "producer.max.request.size": str(ROW_MAX),
            "producer.buffer.memory": str(2 * ROW_MAX),
            "producer.compression.type": "lz4",
            "config.providers": "env",
            "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
            "config.providers.env.param.allowlist.pattern": "NILOMETER_CAPTURE_.*",
            "rest.extension.classes":
                "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension",
        }  # fmt: skip

    def history(self) -> dict[str, str]:
        """Return a connector's settings for the topic with the history of the database's schema."""
        prefix = "schema.history.internal"
        return {
            f"{prefix}.kafka.topic": state_topic(self._name, "history"),
            f"{prefix}.kafka.bootstrap.servers": self._client["bootstrap.servers"],
            **{f"{prefix}.{role}.{key}": f"${{env:{_variable(key)}}}"
               for role in ("producer", "consumer") for key in self._client if key != "bootstrap.servers"},
        }  # fmt: skip

    def _secrets(self) -> dict[str, str]:
        return {_variable(key): value for key, value in self._client.items()}

    def _write(self, name: str, text: str) -> Path:
        path = self._folder / name  # in a folder that only this user may enter
        path.write_text(text, encoding="utf-8")
        return path


def _variable(key: str) -> str:
    return "NILOMETER_CAPTURE_CLIENT_" + key.replace(".", "_").upper()


def _properties(settings: Mapping[str, str]) -> str:
    """Return the text of a file of Java properties."""

    def escaped(value: str) -> str:
        value = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        return f"\\{value}" if value.startswith(" ") else value

    return "".join(f"{key}={escaped(value)}\n" for key, value in settings.items())


def causes(trace: str) -> Sequence[str]:
    """Return the messages of an exception of Java and of its causes, the outermost first."""
    lines = [
        line.removeprefix("Caused by: ") for line in trace.splitlines() if not line.startswith(("\t", " "))
    ]
    found: list[str] = []
    for line in lines:
        name, _, said = line.partition(": ")
        message = (said if "." in name and " " not in name else line).strip()
        if message and not any(message in one for one in found):
            found.append(message)
    return found


def _refusal(refused: urllib.error.HTTPError) -> str:
    """Return why the worker refuses a request: it may only be starting, or rebalancing."""
    try:
        said = str(json.loads(refused.read())["message"])
    except (ValueError, KeyError):
        return f"{refused.code} {refused.reason}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    # The first line of an invalid configuration counts its errors, the last one names a path of the API.
    return "Debezium says: " + " ".join(lines[1:-1]) if len(lines) > 2 else said


def _last_error(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        lines = file.read().decode(errors="replace").splitlines()
    found = [line for line in lines if "Exception" in line or "ERROR" in line]
    return found[-1].strip() if found else "without an error in its log"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _end_with_parent() -> list[str]:
    """Return what a command begins with so that it is killed when this process ends."""
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "KILL"]
