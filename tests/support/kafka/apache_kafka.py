"""Starts Apache Kafka for comparisons: one node, or several, on free loopback ports.

`tests/java/build.sh` fetches it (once). The node's whole configuration is the `.properties` file in its
folder, its output the `.out` file next to it; both are kept, to show why a node did not start.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from nilometer.security.principal import SecurityProtocol

from ..class_archives import archives
from ..ports import HOST, free_ports

JAVA_PROJECT = Path(__file__).resolve().parents[2] / "java"
KAFKA_JARS = JAVA_PROJECT / "target" / "kafka"
CONNECT_JARS = JAVA_PROJECT / "target" / "connect"
"""Connect and MirrorMaker, which are of an earlier release than the broker."""
SPARK_JARS = JAVA_PROJECT / "target" / "spark"
PROGRAMS = JAVA_PROJECT / "target" / "kafka-build" / "kafka-1.jar"
LOGGING = JAVA_PROJECT / "log4j2.properties"

JVM_FOR_SECONDS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
JVM_SMALL = (*JVM_FOR_SECONDS, *archives.options(archives.KAFKA))
"""JVM options for tests: a fast start and little memory."""

FOR_LITTLE_MEMORY = {"log.cleaner.dedupe.buffer.size": "16777216"}
"""By default it is half of that memory, and a node that finds no such room at its start ends."""

JVM_OF_CONNECT = (*JVM_FOR_SECONDS, *archives.options(archives.CONNECT))

JVM_AS_SHIPPED = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""The JVM options of Kafka's own start script: for benchmarks."""

FOLDER_STORAGE = {
    "log.initial.task.delay.ms": "100",
    "remote.log.storage.manager.class.name": "nilometer.FolderStorage",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
}
"""Settings of one node with remote storage, whose folder is `rsm.config.dir`; by default nothing is copied in
its first half minute."""

CLUSTER_ID = "TmlsZU1ldGVyVGVzdDAwMQ"
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


def ensure_java() -> None:
    """Fetch and compile Kafka if it is missing. Raises RuntimeError with the script's output if it fails."""
    build = subprocess.run([str(JAVA_PROJECT / "build.sh")], capture_output=True, text=True, check=False)
    if build.returncode:
        raise RuntimeError(build.stderr.strip())


def kafka_version() -> str:
    ensure_java()
    [jar] = KAFKA_JARS.glob("kafka_2.13-*.jar")
    return jar.stem.removeprefix("kafka_2.13-")


def java_command(main_class: str, *arguments: str, jvm: Sequence[str] | None = None) -> list[str]:
    is_connect = main_class.startswith("org.apache.kafka.connect.")
    if jvm is None:
        jvm = JVM_OF_CONNECT if is_connect else JVM_SMALL
    return [
        "java",
        *jvm,
        f"-Dlog4j2.configurationFile={LOGGING}",
        "-cp",
        f"{CONNECT_JARS}/*" if is_connect else f"{PROGRAMS}:{KAFKA_JARS}/*",
        main_class,
        *arguments,
    ]


def run_tool(main_class: str, *arguments: str, timeout_s: float = 120.0) -> str:
    """Run one of Kafka's command-line classes and return its output. Raises RuntimeError if it fails."""
    ensure_java()
    done = subprocess.run(
        java_command(main_class, *arguments), capture_output=True, text=True, check=False, timeout=timeout_s
    )
    if done.returncode:
        raise RuntimeError(
            f"{main_class} {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
    return done.stdout


class KafkaNode:
    """One process of Apache Kafka: `roles` is `broker`, `controller` or `broker,controller`."""

    def __init__(self, directory: Path, properties: Mapping[str, str], jvm: Sequence[str]) -> None:
        self.directory = directory
        self.log_dir = Path(properties["log.dirs"])
        self.node_id = int(properties["node.id"])
        self._jvm = jvm
        self._process: subprocess.Popen[bytes] | None = None
        self._config = directory / "server.properties"
        directory.mkdir(parents=True, exist_ok=True)
        self._config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"node {self.node_id} is not running")
        return self._process.pid

    @property
    def output(self) -> str:
        path = self.directory / "kafka.out"
        return path.read_text() if path.exists() else ""

    def format(self) -> None:
        if not (self.log_dir / "meta.properties").exists():
            run_tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._config))

    def start(self) -> None:
        ensure_java()
        with (self.directory / "kafka.out").open("ab") as output:
            self._process = subprocess.Popen(
                java_command("kafka.Kafka", str(self._config), jvm=self._jvm), stdout=output, stderr=output
            )

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Stop the node with SIGTERM: leaderships move, logs are flushed and marked clean."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class ApacheKafka:
    """A KRaft cluster: nodes 1…n are brokers; with `dedicated_controller`, node 100 alone is the controller,
    else every node is both. `with ApacheKafka(folder) as kafka: … kafka.bootstrap`."""

    def __init__(
        self,
        directory: Path | str,
        *,
        nodes: int = 1,
        dedicated_controller: bool = False,
        overrides: Mapping[str, str] | None = None,
        more_listeners: Sequence[str] = (),
        jvm: Sequence[str] = JVM_SMALL,
    ) -> None:
        """`more_listeners`: of the only broker, as PROTOCOL://host:port."""
        self.directory = Path(directory).resolve()
        self._broker_ids = list(range(1, nodes + 1))
        controllers = [100] if dedicated_controller else self._broker_ids
        members = sorted({*self._broker_ids, *controllers})
        ports = free_ports(2 * len(members))
        self._broker_port = dict(zip(members, ports, strict=False))
        controller_port = dict(zip(members, ports[len(members) :], strict=True))
        voters = ",".join(f"{each}@{HOST}:{controller_port[each]}" for each in controllers)
        self.nodes: dict[int, KafkaNode] = {}
        for node in members:
            properties = self._properties(node, node in controllers, controller_port[node], voters)
            if more_listeners:
                properties["listeners"] = ",".join([properties["listeners"], *more_listeners])
                protocols = (
                    "CONTROLLER:PLAINTEXT",
                    *(f"{each.value}:{each.value}" for each in SecurityProtocol),
                )
                properties["listener.security.protocol.map"] = ",".join(protocols)
            if jvm is JVM_SMALL:
                properties |= FOR_LITTLE_MEMORY
            self.nodes[node] = KafkaNode(
                self.directory / f"node-{node}", {**properties, **(overrides or {})}, jvm
            )

    def _properties(self, node: int, controls: bool, controller_port: int, voters: str) -> dict[str, str]:
        serves = node in self._broker_ids
        replicas = str(min(3, len(self._broker_ids)))
        roles = [role for role, held in (("broker", serves), ("controller", controls)) if held]
        listeners = [f"PLAINTEXT://{HOST}:{self._broker_port[node]}"] if serves else []
        if controls:
            listeners.append(f"CONTROLLER://{HOST}:{controller_port}")
        return {
            "process.roles": ",".join(roles),
            "node.id": str(node),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "log.dirs": str(self.directory / f"node-{node}" / "data"),
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": str(min(2, len(self._broker_ids))),
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": str(min(2, len(self._broker_ids))),
            "group.initial.rebalance.delay.ms": "0",
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{self._broker_port[node]}" for node in self._broker_ids)

    @property
    def brokers(self) -> list[KafkaNode]:
        return [self.nodes[node] for node in self._broker_ids]

    @property
    def data_dir(self) -> Path:
        """The log folder of the first broker."""
        return self.brokers[0].log_dir

    @property
    def pid(self) -> int:
        return self.brokers[0].pid

    def format(self) -> None:
        for node in self.nodes.values():
            node.format()

    def start(self, *, wait: bool = True) -> None:
        self.format()
        for node in self.nodes.values():
            node.start()
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the metadata of a broker lists every broker."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            for node in self.nodes.values():
                if not node.alive():
                    raise RuntimeError(f"Apache Kafka node {node.node_id} ended:\n{node.output[-4000:]}")
            try:
                if len(admin.list_topics(timeout=0.5).brokers) == len(self._broker_ids):
                    return
            except KafkaException:
                pass  # not yet listening: the deadline decides
            if time.monotonic() > deadline:
                raise RuntimeError(f"Apache Kafka was not ready after {READY_TIMEOUT_S:.0f} s")

    def stop(self) -> None:
        """Stop brokers before a dedicated controller, which a controlled shutdown needs."""
        for node in self.nodes.values():
            node.stop()

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def __enter__(self) -> ApacheKafka:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
