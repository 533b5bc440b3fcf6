"""Runs Apache Kafka's Java clients from Python: one JVM, which reads a command as JSON per line."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence
from typing import Any

from .apache_kafka import JVM_SMALL, ensure_java, java_command


class JavaError(Exception):
    """An error of a Java client; `code` is the protocol's name of the error, or a Java class."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class JavaDriver:
    """`with JavaDriver() as java: java.run("list_topics", config={"bootstrap.servers": …})`."""

    def __init__(self, jvm: Sequence[str] = JVM_SMALL) -> None:
        self._jvm = jvm
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> JavaDriver:
        ensure_java()
        self._launch()
        return self

    def _launch(self) -> None:
        command = java_command("nilometer.Driver", jvm=(*self._jvm, "-Dlog.level=ERROR"))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.communicate(timeout=30)  # closes its input, which ends it

    def run(self, command: str, **arguments: Any) -> Any:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError("the Java driver is not running")
        process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        process.stdin.flush()
        try:
            line = process.stdout.readline()
        except BaseException:  # a test's time-out: the response must not be read as that of the next command
            process.kill()
            process.wait()
            self._launch()
            raise
        if not line:
            raise RuntimeError(f"the Java driver ended, exit {process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"], answer["message"])
        return answer["ok"]
