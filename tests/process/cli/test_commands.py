"""The command line itself: help that costs nothing, errors that say what to do, exit codes that are true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from nilometer.cli.consume import consume
from nilometer.cli.main import COMMANDS, cli
from nilometer.cli.record_format import BadFormat, as_json, json_lines, template, value_lines
from nilometer.client.consumer.fetch_exchange import ConsumerRecord

HEAVY = ("pyspark", "pandas", "pyarrow", "numba", "uvloop", "kio", "rich", "asyncio")


def nilometer(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nilometer.cli", *arguments]
    settings = {"capture_output": True, "text": True, "timeout": 60, **options}
    return subprocess.run(command, check=False, **settings)  # type: ignore[call-overload]


def test_help_lists_commands_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from nilometer.cli.main import run; code = run(['--help']);"
        "print('LOADED', *sorted(set(sys.modules) & set(sys.argv[1:]))); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *HEAVY], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "LOADED"
    for name in ("topic", "produce", "consume", "ingest", "log"):
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


def test_usage_errors_exit_with_2() -> None:
    for arguments in (
        ["nonsense"],
        ["topic", "create"],
        ["topic", "alter", "t"],
        ["topic", "list", "--bootstrap-server", "nowhere"],
        ["topic", "create", "t", "--config", "no-equals-sign"],
        ["produce", "t", "-X", "no.such.key=1"],
        ["consume", "t", "--from-beginning", "--offset", "3"],
        ["consume", "t", "--offset", "soon"],
        ["consume", "t", "--from-timestamp", "yesterday"],
        ["consume", "t", "--json", "--format", "{value}"],
        ["consume", "t", "--format", "{secret}"],
        ["log", "dump", "/nowhere"],
    ):
        done = nilometer(*arguments, input="")
        assert done.returncode == 2, (arguments, done.stderr)
        assert "Error: " in done.stderr, arguments
        assert "Traceback" not in done.stderr


def test_no_broker_says_where_and_what_to_do() -> None:
    done = nilometer("topic", "list", "--bootstrap-server", "127.0.0.1:1")
    assert done.returncode == 1
    assert "cannot connect to 127.0.0.1:1: Connection refused" in done.stderr
    assert "nilometer up" in done.stderr


def test_address_is_taken_from_the_environment() -> None:
    done = nilometer("topic", "list", env={**os.environ, "NILOMETER_BOOTSTRAP_SERVER": "127.0.0.1:2"})
    assert "cannot connect to 127.0.0.1:2" in done.stderr


def record(**fields: object) -> ConsumerRecord:
    base = ConsumerRecord("t", 1, 7, 1700000000000, 0, b"k", b"v", (("h", b"1"), ("n", None)), 3)
    return base._replace(**fields)  # type: ignore[arg-type]


def test_formats() -> None:
    assert value_lines()(record()) == b"v\n"
    assert value_lines()(record(value=b"")) == b"\n"
    assert value_lines()(record(value=None)) == b"null\n"
    assert value_lines("")(record(value=None)) == b"\n"
    show = template("{topic}-{partition}@{offset}\\t{key}={value} {headers} {timestamp} {leader_epoch}\\n")
    assert show(record()) == b"t-1@7\tk=v h=1,n=null 1700000000000 3\n"
    assert template("{offset:>5}|")(record()) == b"    7|"
    assert template("{key}:{value} {headers}", "∅")(record(key=None, value=b"")) == "∅: h=1,n=∅".encode()
    with pytest.raises(BadFormat, match=r"\{secret\}"):
        template("{secret}")
    with pytest.raises(BadFormat):
        template("{value")
    with pytest.raises(BadFormat):
        template("{value:d}")


@given(st.binary(max_size=50))
def test_formats_keep_every_byte(value: bytes) -> None:
    assert template("{value}")(record(value=value)) == value
    shown = json.loads(json_lines(record(value=value)))
    assert ("value" in shown) != ("value_base64" in shown)


def test_json_form() -> None:
    assert as_json(record(key=None, value=b"\xff")) == {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "timestamp": 1700000000000,
        "timestamp_type": "CreateTime",
        "leader_epoch": 3,
        "key": None,
        "value_base64": "/w==",
        "headers": [{"name": "h", "value": "1"}, {"name": "n", "value": None}],
    }


def test_times_are_utc_unless_they_say_otherwise() -> None:
    (option,) = [one for one in consume.params if one.name == "from_timestamp"]
    assert option.callback is not None
    parse = option.callback
    assert parse(None, None, "1700000000000") == 1700000000000  # type: ignore[arg-type]
    assert parse(None, None, "1970-01-01T00:00:01") == 1000  # type: ignore[arg-type]
    assert parse(None, None, "1970-01-01T02:00:01+02:00") == 1000  # type: ignore[arg-type]


def test_log_dump_of_what_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    done = nilometer("log", "dump", str(tmp_path / "notes.txt"))
    assert done.returncode == 2
    assert "is not a log, index, checkpoint or snapshot file" in done.stderr
