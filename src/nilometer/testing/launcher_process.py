"""The test process's side of the launcher: starts it, and sends it requests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from typing import Any

from nilometer.local.broker_process import broker_environment

RESPONSE_TIMEOUT_S = 150.0
"""More than the longest operation takes: the launcher has its own time limits."""


class ClusterError(Exception):
    """A broker of the test cluster did not start, stop or respond; the message says which, and why."""


class LauncherProcess:
    """A running launcher. Thread-safe: one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "nilometer.testing.launcher"),
                    *(str(theirs.fileno()), str(os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=broker_environment(os.environ),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C ends the test process, which ends the cluster
            )
        self._control = ours
        self._responses = ours.makefile("rb")

    def request(self, operation: str, timeout_s: float = RESPONSE_TIMEOUT_S, **arguments: object) -> Any:
        """Have the launcher perform an operation; return its result.

        Raises ClusterError. After one for ``timeout_s`` (seconds), the launcher can only be closed.
        """
        line = json.dumps({"operation": operation, **arguments}).encode() + b"\n"
        with self._lock:
            try:
                self._control.settimeout(timeout_s)
                self._control.sendall(line)
                response = self._responses.readline()
            except TimeoutError:
                raise ClusterError(f"{operation}: not done after {timeout_s:g} s") from None
            except OSError as error:
                raise ClusterError(f"the process that owns the brokers does not respond: {error}") from None
        if not response:
            raise ClusterError("the process that owns the brokers has ended; see its error output")
        answer = json.loads(response)
        if "error" in answer:
            raise ClusterError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """Close the socket, and wait until the launcher has removed everything and ended."""
        self._responses.close()
        self._control.close()
        self._process.wait(RESPONSE_TIMEOUT_S)
