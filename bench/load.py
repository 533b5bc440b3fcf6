"""The load generator: `native/load.c`, compiled on first use against confluent-kafka's own librdkafka.

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

SOURCE = Path(__file__).with_name("native") / "load.c"
BINARY = SOURCE.parent / "target" / "load"
RUN_TIMEOUT_S = 300.0


def librdkafka_version() -> str:
    return confluent_kafka.libversion()[0]


def compile_load() -> None:
    if BINARY.exists() and BINARY.stat().st_mtime > SOURCE.stat().st_mtime:
        return
    _require_compiler()
    package = confluent_kafka.__file__
    assert package is not None
    libraries = Path(package).parents[1] / "confluent_kafka.libs"
    found = sorted(libraries.glob("librdkafka*.so*"))
    link = [str(found[0]), f"-Wl,-rpath,{libraries}"] if found else ["-lrdkafka"]
    BINARY.parent.mkdir(exist_ok=True)
    command = ["cc", "-O2", "-Wall", "-Wextra", "-o", str(BINARY), str(SOURCE), *link, "-lpthread"]
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


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [str(BINARY), *(str(each) for each in arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    printed, error = process.communicate(timeout=RUN_TIMEOUT_S)
    if process.returncode:
        raise RuntimeError(f"load: exit {process.returncode}: {error.strip()}")
    return json.loads(printed)


def run(*arguments: object) -> dict[str, Any]:
    return finish(start(*arguments))
