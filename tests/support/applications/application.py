"""Runs an unmodified Kafka application of another project as one process, with its output in a file.

The file is kept when the process ends, to show why it ended.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from ..eventually import eventually
from ..kafka.apache_kafka import ensure_java, java_command
from ..process_end import end_process

WAIT_S = 240.0
"""A JVM that shares two cores with a test suite takes a minute to start. The session of a killed member and
the transaction of a killed producer time out after ten seconds each."""
STOP_TIMEOUT_S = 60.0
TAIL = 6_000


class Application:
    """`with Application(command, folder / "streams.out") as it: it.wait_until(…)`."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self._command = list(command)
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> str:
        """The text that all processes of the application have printed so far."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def start(self) -> None:
        ensure_java()
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait until ``condition()`` is true; ``what`` describes it in the error.

        Raises AssertionError, with the end of the output, if the process ends or ``timeout_s`` passes first.
        """

        def holds() -> bool:
            assert self._process is not None, "the application is not running"
            assert self._process.poll() is None, f"it ended with {self._process.returncode}: {self._tail()}"
            return condition()

        try:
            eventually(holds, what, timeout_s)
        except AssertionError as missed:
            raise AssertionError(f"{missed}\n{self._tail()}") from None

    def _tail(self) -> str:
        return self.output[-TAIL:]

    def stop(self) -> int:
        """Send SIGTERM, wait for the end and return the exit code (0 if it was not running)."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        return end_process(process, how, STOP_TIMEOUT_S, self._tail)

    def __enter__(self) -> Application:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            print(self._tail())
        self.kill()


def kafka_application(
    name: str,
    folder: Path,
    main_class: str,
    properties: dict[str, str],
    jvm: Sequence[str] | None = None,
) -> Application:
    """Return an application whose main class takes a properties file as its argument, as Kafka's own do.

    The file and the output, ``<name>.out``, are in ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / f"{name}.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return Application(java_command(main_class, str(config), jvm=jvm), folder / f"{name}.out")
