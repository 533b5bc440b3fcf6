"""Runs a capture: prepares the database, has a worker run the connector, and watches it.

Invariants: what the worker has stored in the cluster is the only position of a capture; a capture continues
there or not at all. It begins with all rows of the table.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nilometer.pipeline.capture.databases import (
    CONNECTORS,
    PASSWORD,
    MysqlSource,
    Position,
    PostgresSource,
    Source,
)
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.spark.java import require_java

# Downloads Kafka Connect and a connector of Debezium, with all that they need, as Spark does its packages.
#
# Ivy, which comes with pyspark, resolves them from the local Maven repository and Maven Central. They are
# kept in a folder of the user's cache; a folder is there completely or not at all.

CONNECT = (
    "org.apache.kafka:connect-runtime:4.3.1",
    "org.apache.kafka:connect-basic-auth-extension:4.3.1",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)
_SETTINGS = """<ivysettings>
  <settings defaultResolver="all"/>
  <resolvers>
    <chain name="all" returnFirst="true">
      <ibiblio name="local" m2compatible="true" root="{local}"/>
      <ibiblio name="central" m2compatible="true"/>
    </chain>
  </resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0">
  <info organisation="nilometer" module="capture"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""
_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" conf="default->compile,runtime,master"/>'


def downloaded_jars(connector: str) -> Path:
    """Return the folder with the jars for a connector, a Maven coordinate, after downloading if needed.

    Raises PipelineError.
    """
    name = "_".join(one.split(":", 1)[1].replace(":", "-") for one in (connector, CONNECT[0]))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "nilometer", "capture")
    folder = cache / name
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            jars = _download((connector, *CONNECT), Path(work), cache / "ivy")
            if not folder.exists():
                jars.rename(folder)
    return folder


def _download(coordinates: tuple[str, ...], work: Path, ivy_cache: Path) -> Path:
    settings, module, jars = work / "ivysettings.xml", work / "ivy.xml", work / "jars"
    settings.write_text(_SETTINGS.format(local=(Path.home() / ".m2" / "repository").as_uri() + "/"))
    dependencies = "".join(_DEPENDENCY.format(*one.split(":")) for one in coordinates)
    module.write_text(_MODULE.format(dependencies=dependencies))
    command = [
        require_java(), "-jar", str(_ivy()), "-settings", str(settings), "-ivy", str(module),
        "-cache", str(ivy_cache), "-types", "jar", "bundle", "maven-plugin",
        "-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not jars.exists():
        shutil.rmtree(jars, ignore_errors=True)
        missing = [line.strip(" :\t") for line in done.stdout.splitlines() if "not found" in line]
        reason = "; ".join(missing[:3]) or (done.stderr or done.stdout).strip()[-500:]
        raise PipelineError(
            f"Debezium ({coordinates[0]}) could not be downloaded from Maven Central: {reason}. Where it "
            "cannot be reached, --jars names a folder with the jars of the connector and of Kafka Connect"
        )
    return jars


def _ivy() -> Path:
    import pyspark

    return next(Path(pyspark.__file__).parent.joinpath("jars").glob("ivy-*.jar"))


# A worker of Kafka Connect that runs one connector, and its REST interface.
#
# The worker keeps its state in topics of the cluster, and writes records and offsets in one transaction. Its
# REST interface is on this machine's loopback address and needs a password that is made for each run; secrets
# are in the worker's environment and never in its topics. The worker ends with this process, even by SIGKILL.

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


WATCH_S = 1.0
RESTARTS_MAX, RESTARTS_S = 3, 600.0
"""So many losses of a transaction within so long are repaired; one more ends the capture."""
RESTART_TIMEOUT_S = 60.0
LOST_TRANSACTION = (
    "ProducerFencedException",
    "InvalidProducerEpochException",
    "InvalidTxnStateException",
    "InvalidPidMappingException",
    "TransactionAbortedException",
)
"""Exceptions of Kafka's producer after the cluster has ended its transaction: the capture, or the machine,
stood still for longer than transaction.timeout.ms. Nothing of such a transaction is committed."""
_NAME = re.compile(r"[a-z0-9_]{1,63}")


def source_of(dsn: str, table: str, name: str | None) -> Source:
    """Return the table of the database that a connection string names. Raises PipelineError."""
    if name is not None and not _NAME.fullmatch(name):
        raise PipelineError(f"--slot {name}: a name is at most 63 characters of a-z, 0-9 and _")
    made = MysqlSource if dsn.partition("://")[0] in CONNECTORS else PostgresSource
    return made(dsn, table, name)


def state_prefix(source: Source) -> str:
    """Return what the names of the topics begin with in which a cluster keeps the capture's state."""
    return state_topic(source.name, "")


def connector_settings(source: Source, topic: str, topic_id: str) -> dict[str, str]:
    """Return the settings of the connector that writes the table's changes to ``topic``."""
    own = source.connector()
    prefix = re.sub(r"\W", r"\\\g<0>", own["topic.prefix"])
    return {
        **own,
        "tasks.max": "1",
        "tombstones.on.delete": "true",
        "skipped.operations": "none",
        "event.converting.failure.handling.mode": "fail",  # else such a value is null
        "key.converter.schemas.enable": "true",
        "value.converter.schemas.enable": "true",
        "topic.creation.default.replication.factor": "-1",
        "topic.creation.default.partitions": "-1",
        "poll.interval.ms": "100",
        "max.queue.size.in.bytes": str(64 * 1024 * 1024),
        "heartbeat.interval.ms": "2000",
        "topic.heartbeat.prefix": state_topic(source.name, "heartbeat"),
        "transforms": "topic",
        "transforms.topic.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.topic.regex": rf"{prefix}\..*",
        "transforms.topic.replacement": topic,
        TOPIC_ID: topic_id,
    }


def truncate_event(source: Mapping[str, str | int], at_ms: int) -> bytes:
    """Return the event that Debezium sends of a truncate, with the schema around it."""
    payload = {"op": "t", "source": {**source, "ts_ms": at_ms, "snapshot": "false"}, "ts_ms": at_ms}
    return json.dumps({"schema": _schema_of(payload), "payload": payload}).encode()


def _schema_of(value: str | int | Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of Kafka Connect for a value, as its JSON converter writes it."""
    if isinstance(value, Mapping):
        fields = [{"field": name, **_schema_of(one)} for name, one in value.items()]
        return {"type": "struct", "optional": False, "fields": fields}
    return {"type": "string" if isinstance(value, str) else "int64", "optional": False}


def run(
    source: Source,
    topic: str,
    topic_id: str,
    client: Mapping[str, str],
    log: Path,
    jars: Path | None,
    *,
    available_now: bool,
    on_running: Callable[[], None],
    on_restart: Callable[[str], None],
) -> None:
    """Capture until interrupted, or until all changes that exist now are in ``topic``.

    ``on_running`` is called when the connector runs, ``on_restart`` with the reason when it runs again from
    its stored position. Raises PipelineError.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    jars = jars or downloaded_jars(source.coordinate)
    with Worker(source.name, jars, client, {PASSWORD: source.password}, log) as worker:
        worker.run({**connector_settings(source, topic, topic_id), **worker.history()})
        until, is_running = None, False
        restarts: list[float] = []
        while True:
            if (failure := worker.failure()) is not None:
                now = time.monotonic()
                restarts = [at for at in restarts if now - at < RESTARTS_S]
                if len(restarts) == RESTARTS_MAX or not any(one in failure for one in LOST_TRANSACTION):
                    raise PipelineError(_explained(source, topic, failure, log))
                restarts.append(now)
                on_restart(causes(failure)[-1])
                worker.restart_failed()
                _wait_restarted(worker, failure)
            if not is_running and worker.runs():
                is_running = True
                on_running()
                until = source.now() if available_now else None
            if until is not None and _has_reached(source, worker.offset(), until):
                return
            time.sleep(WATCH_S)


def _wait_restarted(worker: Worker, failure: str) -> None:
    """Wait until the worker no longer shows ``failure``. Raises PipelineError."""
    deadline = time.monotonic() + RESTART_TIMEOUT_S
    while worker.failure() == failure:
        if time.monotonic() > deadline:
            raise PipelineError(f"Kafka Connect does not restart the capture after: {causes(failure)[-1]}")
        time.sleep(WATCH_S)


def _has_reached(source: Source, offset: Mapping[str, Any] | None, until: Position) -> bool:
    """Return whether a stored offset is behind the table's first rows and not before ``until``."""
    return offset is not None and not offset.get("snapshot") and source.position(offset) >= until


def _explained(source: Source, topic: str, failure: str, log: Path) -> str:
    """Return a failure of the connector in words for who can mend it."""
    if "RecordTooLargeException" in failure:
        return (
            f"a row of {source.table} is larger than max.message.bytes of topic {topic}. Raise it and "
            f"start again: nilometer topic alter {topic} --config max.message.bytes=BYTES"
        )
    if (known := source.explain(failure)) is not None:
        return known
    if "Failed to properly convert" in failure:
        return (
            f"Debezium cannot convert a value of {source.table}: {causes(failure)[-1]}. Change the value, "
            "or the column's type; then --drop and capture again, which begins with all rows"
        )
    return f"Debezium ended: {': '.join(causes(failure)[-2:])} (log: {log})"
