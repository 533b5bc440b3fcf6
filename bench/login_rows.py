"""Logins per second, each on a connection of its own, so many at once."""

from __future__ import annotations

import json
import sys
import time
from functools import partial

from . import load
from .rows import CLIENT, P50, P99, Column, Load, Numbers, Row
from .secured import (
    CIPHER,
    ITERATIONS_OF_SCRAM,
    PASSWORD,
    PLAIN,
    SCRAM,
    TLS_VERSION,
    USER,
    check_cipher,
    create_user,
    secured_systems,
    security_of,
)
from .systems import System, cpu_seconds

AT_ONCE = 8
"""Processes of the client, for both systems."""


def _log_in(system: System, seconds: float, *, protocol: str, mechanism: str) -> Numbers:
    security = security_of(system)
    host, _, port = security.addresses[protocol].rpartition(":")
    authority = [str(security.certificate)] if protocol == "SASL_SSL" else []
    client = [sys.executable, "-m", "bench.login_load", host, port, mechanism, USER, PASSWORD]
    cpu, began = cpu_seconds(system), time.monotonic()
    process = load.start_client([*client, str(seconds), str(AT_ONCE), *authority])
    done = json.loads(load.printed_by(process))
    cpu, taken = cpu_seconds(system) - cpu, time.monotonic() - began
    return {
        "logins_per_s": done["per_s"],
        "p50_ms": done["p50"],
        "p99_ms": done["p99"],
        "cpu_ms_per_login": cpu / done["logins"] * 1e3,
        "cpu_percent": 100 * cpu / taken,
        **load.client_numbers(done),
    }


def _prepare(system: System) -> None:
    check_cipher(system)
    create_user(system)


def _row(key: str, how: str, protocol: str, mechanism: str) -> Row:
    return Row(
        key,
        f"logins, {AT_ONCE} at once, each on a new connection: {how}",
        (
            Column("logins_per_s", "logins/s", "logins/s", more_is_better=True, digits=0),
            P50,
            P99,
            Column("cpu_ms_per_login", "broker CPU per login", "ms", more_is_better=False, digits=2),
            *CLIENT,
        ),
        Load(partial(_log_in, protocol=protocol, mechanism=mechanism), "logins_per_s", prepare=_prepare),
        systems=secured_systems,
    )


_SCRAM = f"{SCRAM.value}, {ITERATIONS_OF_SCRAM:,} iterations, the password hashed once"
LOGIN_ROWS: tuple[Row, ...] = (
    _row("logins-plain", "SASL_PLAINTEXT, PLAIN", "SASL_PLAINTEXT", PLAIN),
    _row("logins-scram", f"SASL_PLAINTEXT, {_SCRAM}", "SASL_PLAINTEXT", SCRAM.value),
    _row(
        "logins-tls-scram",
        f"SASL_SSL ({TLS_VERSION.replace('v', ' ')}, {CIPHER}, no resumption), {_SCRAM}",
        "SASL_SSL",
        SCRAM.value,
    ),
)
