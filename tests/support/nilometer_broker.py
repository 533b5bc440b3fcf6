"""One Nilometer broker as its users run it: a process on a free loopback port, killed and restarted at will.

The installed `nilometer` command starts it; its output is kept beside its data folder, in `<folder>.out`.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from .ports import HOST, free_ports

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.005


class NilometerBroker:
    """`with NilometerBroker(folder) as broker: … broker.bootstrap`; `kill()` and `start()` as wanted."""

    def __init__(
        self,
        data_dir: Path | str,
        overrides: Mapping[str, str] | None = None,
        port: int = 0,
        node_id: int = 1,
    ) -> None:
        self.data_dir = Path(data_dir).resolve()
        self.port = port or free_ports(1)[0]
        self.node_id = node_id
        self._settings = {
            "listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "log.dirs": str(self.data_dir),
            "node.id": str(node_id),
            **(overrides or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.pid

    @property
    def output(self) -> str:
        """What all its lives printed so far."""
        return self._output_path.read_text() if self._output_path.exists() else ""

    @property
    def _output_path(self) -> Path:
        return self.data_dir.with_name(self.data_dir.name + ".out")

    def launch(self) -> None:
        """Start the process and return at once."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command = [str(Path(sys.executable).with_name("nilometer")), "broker"]
        for key, value in self._settings.items():
            command += ["--override", f"{key}={value}"]
        with self._output_path.open("ab") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Until it accepts connections: it listens only once it can serve."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            if not self.alive():
                raise RuntimeError(f"the broker ended:\n{self.output[-4000:]}")
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"the broker was not ready after {READY_TIMEOUT_S:.0f} s:\n{self.output[-4000:]}"
                    ) from None
            time.sleep(_POLL_S)

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int:
        """As `kill` does it; the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the broker did not end on {how.name}:\n{self.output[-4000:]}") from None

    def __enter__(self) -> NilometerBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
