"""A temporary MariaDB server for a test, with a row-based binary log, on a free loopback port."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pymysql

from ..eventually import eventually
from ..ports import HOST, free_ports
from ..process_end import end_process

USER = "mysql"
PASSWORD = "secret"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


class MariadbServer:
    """`with MariadbServer() as server: server.connect("shop")`. The database ``shop`` exists."""

    def __init__(self, *options: str) -> None:
        if shutil.which("mariadbd") is None:
            raise RuntimeError("MariaDB is not installed: tests/components.sh installs it")
        self.port = free_ports(1)[0]
        self._folder = Path(tempfile.mkdtemp(prefix="nilometer-mariadb-"))
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def connect(self, database: str | None = None) -> pymysql.Connection[Any]:
        return pymysql.connect(
            host=HOST, port=self.port, user="root", password=PASSWORD, database=database, autocommit=True
        )

    def url(self, database: str) -> str:
        return f"mariadb://root:{PASSWORD}@{HOST}:{self.port}/{database}"

    def __enter__(self) -> MariadbServer:
        data = str(self._folder / "data")
        as_user = [f"--user={USER}"] if os.geteuid() == 0 else []
        if as_user:
            shutil.chown(self._folder, USER, USER)
        with (self._folder / "said").open("ab") as said:
            subprocess.run(
                ["mariadb-install-db", "--no-defaults", *as_user, f"--datadir={data}", "--skip-test-db"],
                stdout=said, stderr=said, check=True,
            )  # fmt: skip
            first = self._folder / "first.sql"
            first.write_text(
                f"CREATE DATABASE shop;\nCREATE USER root@'{HOST}' IDENTIFIED BY '{PASSWORD}';\n"
                f"GRANT ALL ON *.* TO root@'{HOST}' WITH GRANT OPTION;\n"
            )
            first.chmod(0o644)
            self._process = subprocess.Popen(
                [
                    "mariadbd", "--no-defaults", *as_user, f"--datadir={data}", f"--port={self.port}",
                    f"--bind-address={HOST}", f"--socket={self._folder / 'socket'}", "--server-id=1",
                    "--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL",
                    "--innodb-buffer-pool-size=16M", "--skip-name-resolve", f"--init-file={first}",
                    *self._options,
                ],
                stdout=said, stderr=said,
            )  # fmt: skip
        try:
            eventually(self._answers, "MariaDB answers", START_TIMEOUT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "said").read_text()[-2000:]
        try:
            self.connect("shop").close()
        except pymysql.OperationalError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        try:
            if self._process is not None:
                end_process(self._process, signal.SIGKILL, STOP_TIMEOUT_S, lambda: "")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
