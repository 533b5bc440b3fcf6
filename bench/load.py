"""The load generators of `native/`, compiled on first use against confluent-kafka's own librdkafka.

C, so that the client costs the same few per cent of a core for both brokers and no interpreter stands in the
way of either; the wheel's librdkafka, because it is newer than a distribution's and what the tests use. Its
header comes from Debian's librdkafka-dev: the functions used have not changed since 1.0.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import confluent_kafka

from .client_watch import ClientWatch

SOURCES = Path(__file__).with_name("native")
TARGET = SOURCES / "target"
PROGRAMS = ("load", "transactions", "probe", "connections")
RUN_TIMEOUT_S = 300.0


def librdkafka_version() -> str:
    return confluent_kafka.libversion()[0]


def compile_load() -> None:
    changed_at = max(source.stat().st_mtime for source in SOURCES.glob("*.[ch]"))
    for name in PROGRAMS:
        binary = TARGET / name
        if not binary.exists() or binary.stat().st_mtime < changed_at:
            _compile(SOURCES / f"{name}.c", binary)


def _compile(source: Path, binary: Path) -> None:
    _require_compiler()
    package = confluent_kafka.__file__
    assert package is not None
    libraries = Path(package).parents[1] / "confluent_kafka.libs"
    found = sorted(libraries.glob("librdkafka*.so*"))
    link = [str(found[0]), f"-Wl,-rpath,{libraries}"] if found else ["-lrdkafka"]
    binary.parent.mkdir(exist_ok=True)
    command = [
        "cc",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Wno-unused-function",
        "-o",
        str(binary),
        str(source),
        *link,
        "-lpthread",
    ]
    subprocess.run(command, check=True)


def _require_compiler() -> None:
    if shutil.which("cc") and Path("/usr/include/librdkafka/rdkafka.h").exists():
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-q"], check=False, capture_output=True)
        packages = ["gcc", "libc6-dev", "librdkafka-dev"]
        subprocess.run(["apt-get", "install", "-qy", *packages], check=False, capture_output=True)
    if not shutil.which("cc") or not Path("/usr/include/librdkafka/rdkafka.h").exists():
        raise SystemExit(
            "The benchmark's load generator needs a C compiler and librdkafka's header: install them "
            "(Debian, Ubuntu: apt install gcc libc6-dev librdkafka-dev)."
        )


_running: list[subprocess.Popen[Any]] = []
"""Started here and not waited for yet."""


def start(*arguments: object, program: str = "load", text: bool = True) -> subprocess.Popen[Any]:
    return start_client([str(TARGET / program), *(str(each) for each in arguments)], text=text)


def start_client(command: Sequence[str], *, text: bool = True) -> subprocess.Popen[Any]:
    """Start a program with pipes; :func:`finish` or :func:`printed_by` waits for it."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=text)
    _running.append(process)
    return process


def kill_left() -> None:
    """End the programs that were not waited for, since a row failed or was interrupted."""
    while _running:
        process = _running.pop()
        process.kill()
        process.wait()


def finish(process: subprocess.Popen[Any], given: Any = None) -> dict[str, Any]:
    """Wait for the end, which a program that reads its input takes the end of that for.

    Returns what it printed, and how busy it was (`client_watch.py`).
    """
    with ClientWatch(process.pid) as watch:
        printed = printed_by(process, given)
    return {**last_line(printed), **watch.numbers()}


def last_line(printed: str | bytes) -> dict[str, Any]:
    """The JSON that a program ends with."""
    return json.loads(printed.splitlines()[-1])


def printed_by(process: subprocess.Popen[Any], given: Any = None) -> Any:
    """All that the program prints. Raises RuntimeError with what it says of a failure."""
    try:
        printed, error = process.communicate(given, timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        kill_left()
        raise
    _running.remove(process)
    if process.returncode:
        raise RuntimeError(f"{process.args}: exit {process.returncode}: {_readable(error)[-2000:]}")
    return printed


def _readable(error: str | bytes) -> str:
    return (error if isinstance(error, str) else error.decode(errors="replace")).strip()


def run(*arguments: object, program: str = "load") -> dict[str, Any]:
    return finish(start(*arguments, program=program))


CLIENT_KEYS = (
    "client_cpu_percent",
    "client_busiest_percent",
    "machine_percent",
    "machine_waits_for_disk_percent",
)


def client_numbers(done: dict[str, Any]) -> dict[str, float]:
    """The client's part of what a program gave."""
    return {key: done[key] for key in CLIENT_KEYS if key in done}
