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
from pathlib import Path
from typing import Any

import confluent_kafka

SOURCES = Path(__file__).with_name("native")
TARGET = SOURCES / "target"
PROGRAMS = ("load", "transactions", "probe")
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


def start(*arguments: object, program: str = "load") -> subprocess.Popen[str]:
    command = [str(TARGET / program), *(str(each) for each in arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the end, which a program that reads its input takes the end of that for."""
    printed, error = process.communicate(timeout=RUN_TIMEOUT_S)
    if process.returncode:
        raise RuntimeError(f"load: exit {process.returncode}: {error.strip()}")
    return json.loads(printed)


def run(*arguments: object, program: str = "load") -> dict[str, Any]:
    return finish(start(*arguments, program=program))
