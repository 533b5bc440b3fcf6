"""One Nilometer broker as a process on a free loopback port, which tests start, stop and kill.

Its output is in `<folder>.out`, next to its data folder.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ..ports import HOST, free_ports
from ..process_end import end_process

READY_TIMEOUT_S = 120.0
"""Long: on a busy machine the imports alone may take half a minute."""
STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker runs: its address, and a context manager in which its process is started."""

    host: str = HOST
    entered: Callable[[], AbstractContextManager[object]] = nullcontext


class NilometerBroker:
    """`with NilometerBroker(folder) as broker: … broker.bootstrap`; `kill()` and `start()` as wanted."""

    def __init__(
        self,
        data_dir: Path | str,
        overrides: Mapping[str, str] | None = None,
        port: int = 0,
        node_id: int = 1,
        place: Place | None = None,
    ) -> None:
        self._place = place or Place()
        self.data_dir = Path(data_dir).resolve()
        self.port = port or free_ports(1)[0]
        self.node_id = node_id
        self._settings = {
            "listeners": f"PLAINTEXT://{self.host}:{self.port}",
            "log.dirs": str(self.data_dir),
            "node.id": str(node_id),
            **(overrides or {}),
        }
        self.program: Sequence[str] = ("-m", "nilometer.broker")
        """Python's arguments that start the broker: another version, when the process is started next."""
        self._process: subprocess.Popen[bytes] | None = None
        self._ready_fd: int | None = None
        self.metrics_url: str | None = None
        """The page of its metrics since it is ready; None if it serves none."""

    def write_properties(self, path: Path) -> Path:
        """Write its settings as a `server.properties`; return the path."""
        path.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        return path

    @property
    def log_dirs(self) -> list[Path]:
        """The log directories; the first is `data_dir` unless the settings change that."""
        return [Path(one) for one in self._settings["log.dirs"].split(",")]

    def log_dir_of(self, topic: str, partition: int) -> Path:
        """Return the log directory that contains the replica; `data_dir` if none does."""
        name = f"{topic}-{partition}"
        return next((one for one in self.log_dirs if (one / name).is_dir()), self.data_dir)

    @property
    def host(self) -> str:
        return self._place.host

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.pid

    @property
    def output(self) -> str:
        """The output of all its processes so far."""
        return self._output_path.read_text() if self._output_path.exists() else ""

    def outages(self, folder: Path) -> int:
        """Return how often the broker has taken this log directory offline."""
        return self.output.count(f"Log directory {folder} failed, taken offline")

    @property
    def _output_path(self) -> Path:
        return self.data_dir.with_name(self.data_dir.name + ".out")

    def launch(self) -> None:
        """Start the process and return at once."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._forget_readiness()
        self._ready_fd, tell_fd = os.pipe()
        command = [sys.executable, *self.program, "--ready-fd", str(tell_fd)]
        for key, value in self._settings.items():
            command += ["--override", f"{key}={value}"]
        try:
            with self._place.entered(), self._output_path.open("ab") as output:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[tell_fd]
                )
        finally:
            os.close(tell_fd)

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the broker is ready: it writes its address to the pipe, which closes if it ends.

        Raises RuntimeError if it ends, is fenced, or is not ready in time.
        """
        if self._ready_fd is None:
            return
        told, _, _ = select.select([self._ready_fd], [], [], READY_TIMEOUT_S)
        address = os.read(self._ready_fd, 1000) if told else b""
        self._forget_readiness()
        if not address or address.startswith(b"!"):  # "!" and the reason: it is fenced
            outcome = "ended or is fenced" if told else f"was not ready after {READY_TIMEOUT_S:.0f} s"
            raise RuntimeError(f"the broker {outcome}:\n{self.output[-4000:]}")
        self.metrics_url = address.decode().strip().partition(" ")[2] or None

    def _forget_readiness(self) -> None:
        if self._ready_fd is not None:
            os.close(self._ready_fd)
            self._ready_fd = None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int:
        """Stop the broker with SIGTERM; return the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> int:
        self._forget_readiness()
        process, self._process = self._process, None
        if process is None:
            return 0
        return end_process(process, how, STOP_TIMEOUT_S, lambda: self.output[-4000:])

    def __enter__(self) -> NilometerBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
