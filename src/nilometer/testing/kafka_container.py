"""``KafkaContainer`` with the methods of testcontainers' class of that name, on a test cluster of one broker.

There is no container and no image: ``image`` may name any. What testcontainers maps to a port of the host is
the broker's own port.
"""

from __future__ import annotations

from nilometer.testing.cluster import HOST, Cluster, ClusterError

START_TIMEOUT_S = 60.0
PREFIX = "KAFKA_"
CLUSTER_ID = "CLUSTER_ID"
OF_THE_JVM = ("KAFKA_HEAP_", "KAFKA_JVM_", "KAFKA_JMX_", "KAFKA_GC_", "KAFKA_LOG4J_", "KAFKA_OPTS")
"""Variables that images give to Java instead of the broker. Here they have no effect."""


class KafkaContainer:
    """A test cluster of one broker with the methods of testcontainers' ``KafkaContainer``.

    ``with KafkaContainer() as kafka: … kafka.get_bootstrap_server()``.
    """

    def __init__(self, image: str = "nilometer", port: int = 9093) -> None:
        """``port`` is what :meth:`get_exposed_port` is called with; it has no other effect."""
        self.image = image
        self.port = port
        self._environment: dict[str, str] = {}
        self._cluster: Cluster | None = None

    def with_env(self, key: str, value: str | int) -> KafkaContainer:
        """Set a variable of Kafka's and Confluent's images: ``KAFKA_NUM_PARTITIONS`` is ``num.partitions``.

        ``CLUSTER_ID`` is the id of the cluster. Other variables without the prefix ``KAFKA_`` have no effect.
        Raises ValueError for settings that the cluster gives itself, such as ``KAFKA_LISTENERS``.
        """
        self._environment[key] = str(value)
        Cluster(settings=broker_settings({key: str(value)}))
        return self

    def with_envs(self, **variables: str | int) -> KafkaContainer:
        """Set several variables, as :meth:`with_env` does."""
        for key, value in variables.items():
            self.with_env(key, value)
        return self

    def with_kraft(self) -> KafkaContainer:
        """Do nothing: the broker never needs ZooKeeper."""
        return self

    def with_cluster_id(self, cluster_id: str) -> KafkaContainer:
        """Choose the id of the cluster."""
        return self.with_env(CLUSTER_ID, cluster_id)

    def start(self, timeout: float = START_TIMEOUT_S) -> KafkaContainer:
        """Start the broker. Raises ClusterError if it is not ready within ``timeout`` seconds."""
        cluster = Cluster(
            settings=broker_settings(self._environment), cluster_id=self._environment.get(CLUSTER_ID)
        )
        cluster.start(timeout)
        self._cluster = cluster
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """End the broker and remove its data, whatever the arguments. Stopping again does nothing."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def __enter__(self) -> KafkaContainer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def get_container_host_ip(self) -> str:
        return HOST

    def get_exposed_port(self, port: int) -> int:
        """Return the broker's port. Raises ClusterError for another ``port`` than the constructor's."""
        if port != self.port:
            raise ClusterError(f"port {port} is not exposed; the exposed port is {self.port}")
        return int(self._started().address(1).rpartition(":")[2])

    def get_bootstrap_server(self) -> str:
        """Return ``host:port``."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(self.port)}"

    def get_logs(self) -> tuple[bytes, bytes]:
        """Return the broker's standard output, which is empty, and its log."""
        return b"", self._started().log(1).encode()

    def _started(self) -> Cluster:
        if self._cluster is None:
            raise ClusterError("the container is not running: use it in `with`, or call start()")
        return self._cluster


def broker_settings(environment: dict[str, str]) -> dict[str, str]:
    """Return the broker settings among the variables of an image.

    After ``KAFKA_``, one underscore is a dot, two are an underscore and three a hyphen.
    """
    return {
        _key(name.removeprefix(PREFIX)): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and not name.startswith(OF_THE_JVM)
    }


def _key(name: str) -> str:
    return name.lower().replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
