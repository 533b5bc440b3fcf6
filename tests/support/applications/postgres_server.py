"""A temporary PostgreSQL server for a test, with logical decoding, on a free loopback port.

Its folder is not below pytest's: PostgreSQL does not run as root, and another user cannot enter that one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ..ports import HOST, free_ports

USER = "postgres"
SETTINGS = (
    "wal_level=logical",
    f"listen_addresses={HOST}",
    "fsync=off",
    "max_wal_senders=4",
    "max_replication_slots=4",
    "shared_buffers=16MB",
    "max_prepared_transactions=4",
)


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, the newest version if there are several; or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


class PostgresServer:
    """`with PostgresServer() as server: … server.dsn`."""

    def __init__(self) -> None:
        folder = programs()
        if folder is None:
            raise RuntimeError("PostgreSQL is not installed: tests/components.sh installs it")
        self._programs = folder
        self._port = free_ports(1)[0]
        self._folder = Path(tempfile.mkdtemp(prefix="nilometer-postgres-"))

    @property
    def dsn(self) -> str:
        return f"postgresql://{USER}@{HOST}:{self._port}/postgres"

    def __enter__(self) -> PostgresServer:
        if os.geteuid() == 0:
            shutil.chown(self._folder, USER, USER)
        data = str(self._folder / "data")
        self._run("initdb", "--pgdata", data, "--username", USER, "--auth", "trust", "--no-sync")
        self._start()
        return self

    def restart(self) -> None:
        """Stop the server as a crash does, and start it again."""
        self._stop()
        self._start()

    def _start(self) -> None:
        options = " ".join(f"-c {setting}" for setting in SETTINGS)
        options += f" -p {self._port} -k {self._folder}"
        data, log = str(self._folder / "data"), str(self._folder / "log")
        self._run("pg_ctl", "--pgdata", data, "--wait", "--log", log, "--options", options, "start")

    def _stop(self) -> None:
        self._run("pg_ctl", "--pgdata", str(self._folder / "data"), "--wait", "--mode", "immediate", "stop")

    def __exit__(self, *_: object) -> None:
        try:
            self._stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        if os.geteuid() == 0:
            command = ["runuser", "-u", USER, "--", *command]
        # The server inherits the standard output of its starter: a pipe would stay open while it runs.
        with (self._folder / "said").open("ab") as said:
            done = subprocess.run(command, stdout=said, stderr=said, cwd=self._folder, check=False)
        if done.returncode:
            raise RuntimeError(f"{program} failed: {(self._folder / 'said').read_text()[-2000:]}")
