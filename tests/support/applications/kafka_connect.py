"""A distributed worker of Kafka Connect on a free loopback port, and its REST interface."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..kafka.apache_kafka import JAVA_PROJECT
from ..ports import HOST, free_ports
from .application import Application, kafka_application

PLUGINS = JAVA_PROJECT / "target" / "connect-plugins"
REQUEST_TIMEOUT_S = 60.0
CONFIGS, OFFSETS, STATUS = TOPICS = ("connect-configs", "connect-offsets", "connect-status")
"""The compacted topics in which a worker stores its state."""
JSON = {
    f"{part}.converter{more}": value
    for part in ("key", "value")
    for more, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "false"))
}
TEXT = {f"{part}.converter": "org.apache.kafka.connect.storage.StringConverter" for part in ("key", "value")}


class ConnectWorker:
    """`with ConnectWorker(folder, bootstrap) as worker: worker.run_connector("source", {…})`."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        settings: Mapping[str, str] | None = None,
        jvm: Sequence[str] | None = None,
    ) -> None:
        self._address = f"http://{HOST}:{free_ports(1)[0]}"
        self.application: Application = kafka_application(
            "connect",
            folder,
            "org.apache.kafka.connect.cli.ConnectDistributed",
            {
                "bootstrap.servers": bootstrap,
                "group.id": "connect",
                "listeners": self._address,
                "config.storage.topic": CONFIGS,
                "offset.storage.topic": OFFSETS,
                "offset.storage.partitions": "2",
                "status.storage.topic": STATUS,
                "status.storage.partitions": "2",
                "exactly.once.source.support": "enabled",
                "scheduled.rebalance.max.delay.ms": "0",
                "session.timeout.ms": "10000",
                "offset.flush.interval.ms": "1000",
                "plugin.path": str(PLUGINS),
                "plugin.discovery": "service_load",
                **JSON,
                **(settings or {}),
            },
            jvm,
        )

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self._address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
            return json.loads(answer.read() or b"null")

    def serves(self) -> bool:
        try:
            self._ask("GET", "/connectors")
        except OSError:
            return False
        return True

    def run_connector(self, name: str, config: Mapping[str, str]) -> None:
        """Create the connector and wait until it and its tasks run; retry while the worker is not ready.

        Raises AssertionError if the worker rejects ``config`` or a task fails.
        """
        refusals: list[str] = []

        def is_taken() -> bool:
            try:
                self._ask("PUT", f"/connectors/{name}/config", dict(config))
            except urllib.error.HTTPError as refused:
                refusals.append(f"{refused.code} {refused.read().decode(errors='replace')}")
                assert refused.code != 400, refusals[-1]
                return False
            except OSError as unreachable:
                refusals.append(str(unreachable))
                return False
            return True

        self.application.wait_until(is_taken, f"Connect takes the connector {name}")
        self.wait_running(name)

    def wait_running(self, name: str) -> None:
        self.application.wait_until(lambda: self._runs(name), f"the connector {name} runs")

    def _runs(self, name: str) -> bool:
        try:
            status = self._ask("GET", f"/connectors/{name}/status")
        except OSError:  # not yet listening, or no such status yet
            return False
        states = [status["connector"], *status["tasks"]]
        failed = [one.get("trace", "") for one in states if one["state"] == "FAILED"]
        assert not failed, failed[0]
        return len(states) > 1 and all(one["state"] == "RUNNING" for one in states)

    def __enter__(self) -> ConnectWorker:
        self.application.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.application.__exit__(kind, error, trace)
