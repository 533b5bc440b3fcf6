"""Wrong arguments, dead servers, closed and full streams: one message, no traceback, an exit code."""

from __future__ import annotations

import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from support.command_line import Nilometer, Outcome
from support.command_shell import PATIENCE_S, CommandShell
from support.documentation.command_reference import leaf_commands

HUGE = "9" * 30
NOWHERE = "127.0.0.1:1"
ARGUMENTS = {
    "acl add": "allow --principal User:a --operation read --topic t",
    "acl remove": "--topic t --yes",
    "quota set": "producer_byte_rate=1000 --user a",
    "quota remove": "--user a",
    "topic alter": "t --partitions 2",
    "topic config": "t",
    "topic create": "t",
    "topic delete": "t --yes",
    "topic delete-records": "t --all --yes",
    "topic describe": "t",
    "topic offsets": "t",
    "produce": "t FILE",
    "consume": "t --until-end",
    "group delete": "g --yes",
    "group delete-offsets": "g --topic t --yes",
    "group describe": "g",
    "group reset-offsets": "g --topic t --to-latest",
    "token expire": "i --yes",
    "token renew": "i",
    "transaction abort": "i --force --yes",
    "transaction describe": "i",
    "transaction producers": "t 0",
    "user add": "u --password-file FILE",
    "user remove": "u --yes",
    "ingest": "FILE --topic t",
    "queue create": "q",
    "queue dead list": "q",
    "queue put": "q FILE",
    "queue redrive": "q",
    "queue stats": "q",
    "queue work": "q --exec true",
    "elect-leaders": "--all",
    "reassign cancel": "--all",
    "reassign execute": "PLAN",
    "reassign plan": "--topic t",
    "broker config": "1",
    "cluster quorum add": "1 localhost:1",
    "cluster quorum remove": "1 --yes",
    "pipeline sample": "logs",
    "pipeline deliver": "--webhook http://127.0.0.1:1/ --until-idle",
}
NOT_OF_A_CLUSTER = {"console", "exporter", "pipeline capture", "pipeline declare", "pipeline run", "status"}
"""Commands that need another server, need none, or report a dead cluster as their result."""


def of_a_cluster() -> list[str]:
    """Return the commands with --bootstrap-server."""
    names = [
        name.removeprefix("nilometer ")
        for name, command in leaf_commands()
        if any("--bootstrap-server" in option.opts for option in command.params)
    ]
    return sorted(set(names) - NOT_OF_A_CLUSTER)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("line\n")
    plan = '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}'
    (tmp_path / "PLAN").write_text(plan)
    return tmp_path


def check(done: Outcome, *codes: int) -> None:
    assert done.code in codes, done
    assert "Error: " in done.err and "Traceback" not in done.err + done.out, done


@pytest.mark.parametrize("name", of_a_cluster())
def test_no_broker(nilometer: Nilometer, here: Path, name: str) -> None:
    done = nilometer(*name.split(), *ARGUMENTS.get(name, "").split(), "--bootstrap-server", NOWHERE)
    check(done, 1)
    assert NOWHERE in done.err


class _Http(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(1000)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


@contextmanager
def another_server() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Http) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield "{}:{}".format(*server.server_address)
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_is_no_broker(nilometer: Nilometer, here: Path) -> None:
    with another_server() as address:
        for name in ("topic list", "produce t FILE", "consume t --until-end", "replicas"):
            check(nilometer(*name.split(), "--bootstrap-server", address), 1)


@pytest.mark.parametrize(
    "line",
    [
        "topic create",
        "topic create ''",
        "topic create .",
        "topic create a/b",
        f"topic create {'x' * 250}",
        f"topic create t --partitions {HUGE}",
        "topic create t --partitions 0",
        "topic create t --replication-factor 3",
        "topic create t --config retention.ms=soon",
        "topic create t --config nosuch=1",
        "topic alter t",
        "topic alter nosuch --partitions 3",
        f"topic alter there --partitions {HUGE}",
        "topic describe nosuch",
        "topic delete nosuch",
        f"topic offsets there --partition {HUGE}",
        "topic offsets there --partition 7",
        f"topic offsets there --at {HUGE}",
        "topic offsets there --at yesterday",
        f"topic delete-records there --yes --before 0:{HUGE}",
        "topic delete-records there --yes --before 0:77",
        f"produce there FILE --partition {HUGE}",
        "produce there FILE --partition 7",
        "produce there FILE --header x",
        "produce there FILE -X linger.ms=x",
        "produce there FILE -X nosuch=1",
        "produce there /nowhere",
        "produce a/b FILE",
        f"consume there --offset {HUGE}",
        "consume there --offset 0:77",
        f"consume there --from-timestamp {HUGE}",
        f"consume there --partition {HUGE}",
        "consume there --partition 7",
        "consume there --format {value",
        "consume there --format {offset:}}",
        "consume there --group '' --until-end",
        "consume nosuch --group g --until-end",
        "group describe nosuch",
        "group describe",
        "group delete nosuch --yes",
        f"group reset-offsets g --topic there --to-offset {HUGE}",
        f"group reset-offsets g --topic there --shift-by {HUGE}",
        "group reset-offsets g --topic there --to-offset 1 --to-latest",
        "group reset-offsets g --topic nosuch --to-latest",
        f"group reset-offsets g --topic there:{HUGE} --to-latest",
        "group reset-offsets g --topic there --by-duration soon",
        f"group reset-offsets g --topic there --to-datetime {HUGE}",
        "group list --type nosuch",
        "transaction list --pattern (",
        f"transaction list --producer-id {HUGE}",
        "transaction list --longer-than nan",
        "transaction list --longer-than inf",
        "transaction describe nosuch",
        f"transaction producers there {HUGE}",
        "transaction producers there 7",
        "transaction producers nosuch 0",
        "transaction abort nosuch",
        f"transaction abort --topic there --partition 0 --start-offset {HUGE}",
        "transaction find-hanging --topic nosuch",
        "transaction find-hanging --older-than nan",
        f"elect-leaders --topic there --partition {HUGE}",
        "elect-leaders --topic there --partition 7",
        "elect-leaders --topic nosuch",
        "reassign execute FILE",
        "reassign execute PLAN",
        "reassign execute /nowhere",
        "reassign plan --topic nosuch",
        f"reassign plan --topic there --brokers {HUGE}",
        "reassign plan --topic there --brokers x",
        f"reassign execute THERE --throttle {HUGE}",
        f"broker config {HUGE}",
        "broker config 1 --set node.id=2",
        "broker config 1 --set x",
        f"replicas --partition {HUGE} --topic there",
        "replicas --interval nan",
        "status --interval nan",
        "status --timeout nan",
        f"status --interval {HUGE}{HUGE}",
        f"replicas --timeout {HUGE}{HUGE}",
        "replicas --topic nosuch",
        "user list nosuch",
        "user add u",
        "user add u --password-file nosuch",
        "user add u --password-file FILE --iterations 4095",
        "user add u --password-file FILE --mechanism PLAIN",
        "user add '' --password-file FILE",
        "user remove nosuch",
        "ingest FILE --topic a/b",
        "ingest FILE --topic there --state FILE/state.json",
        "log dump FILE",
        "metadata dump --coordination nonsense",
        "metadata dump --data-dir .",
        f"metadata image --coordination local:/nowhere --at {HUGE}",
        "metadata copy --from nonsense --to local:store",
        "metadata copy --from local:nowhere --to quorum:directory --node-id 1",
        "metadata copy --from quorum:. --to local:store",
        "metadata copy --from local:FILE --to quorum:directory --node-id 1",
        "metadata copy --from local:nowhere --to local:nowhere",
        "metadata copy --from local:nowhere --to zookeeper://127.0.0.1:1/x",
        "metadata copy --from zookeeper://127.0.0.1:1/x --to quorum:FILE",
        "metadata reopen quorum:nowhere --yes",
        "metadata reopen local:FILE --yes",
        "metadata reopen nonsense --yes",
        "storage format --config FILE --cluster-id c --standalone",
        "storage format --config nosuch --cluster-id c --standalone",
        "storage format --config FILE",
        "storage info nosuch",
        "rotate-secret --data-dir .",
        "rotate-secret --coordination local:/nowhere",
        "scenario run nosuch",
        "simulate --minutes nan",
        "simulate --minutes inf",
        "simulate --faults nosuch",
        "simulate --only x",
        "up --data-dir cluster --port 65535 --brokers 2",
        "up --data-dir cluster --override x",
        "up --data-dir cluster --override node.id=3",
        "up --data-dir FILE",
        "audit --data-dir nowhere",
        "audit --log-dirs nowhere",
        "topic list --bootstrap-server 127.0.0.1:99999",
        "topic list --bootstrap-server nowhere",
        "topic list --bootstrap-server ,",
        "topic list --bootstrap-server host.invalid:9092",
        "completion tcsh",
        "nosuch",
    ],
)
def test_wrong_arguments(nilometer: Nilometer, here: Path, line: str) -> None:
    nilometer("topic", "create", "there", "--if-not-exists", "--partitions", "1")
    words = ["" if word == "''" else word for word in line.split()]
    check(nilometer(*words), 1, 2)


class TestStreams:
    def run(self, shell: CommandShell, line: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
        program = f"{sys.executable} -m nilometer.cli"
        return subprocess.run(
            ["bash", "-c", line.replace("nilometer", program, 1)],
            env=shell.environment,
            cwd=folder,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def test_full_and_closed_streams(self, shell: CommandShell, here: Path) -> None:
        shell.run("topic", "create", "streams")
        shell.run("produce", "streams", input=b"line\n" * 100)
        consuming = "consume streams --from-beginning --until-end"
        for line in ("topic list", "topic list --json", consuming):
            done = self.run(shell, f"nilometer {line} > /dev/full", here)
            assert (done.returncode, done.stderr) == (
                1,
                b"Error: standard output: No space left on device\n",
            ), line
            done = self.run(shell, f"nilometer {line} >&-", here)
            if line == consuming:
                assert done.returncode == 2 and b"standard output is closed" in done.stderr
            else:
                assert (done.returncode, done.stderr) == (0, b""), line
            done = self.run(shell, f"nilometer {line} | true; exit ${{PIPESTATUS[0]}}", here)
            assert (done.returncode, done.stderr) == (0, b""), line
        done = self.run(shell, "nilometer produce streams --json <&-", here)
        assert done.returncode == 0 and b'"records": 0' in done.stdout
        done = self.run(shell, "nilometer produce streams < /dev/zero", here)
        assert done.returncode == 1 and b"Error: line 1 of the input: no newline in" in done.stderr

    def test_what_is_not_shown_is_not_committed(self, shell: CommandShell, here: Path) -> None:
        shell.run("topic", "create", "unseen")
        shell.run("produce", "unseen", input=b"line\n" * 10)
        line = "consume unseen --group blind --from-beginning --until-end"
        for where, code in ((">&-", 2), ("> /dev/full", 1), ("| true; exit ${PIPESTATUS[0]}", 0)):
            assert self.run(shell, f"nilometer {line} {where}", here).returncode == code
        assert shell.run(*line.split()) == b"line\n" * 10

    def test_words_that_are_not_utf_8(self, shell: CommandShell, here: Path) -> None:
        for line in (r"topic create $'\xff'", r"group describe $'\xff'", r"transaction describe $'\xff'"):
            done = self.run(shell, f"nilometer {line}", here)
            assert done.returncode == 2, done
            assert b"is not UTF-8 text" in done.stderr and b"Traceback" not in done.stderr
        name = os.fsdecode(b"\xff.txt")
        (here / name).write_bytes(b"value\n")
        done = self.run(shell, r"nilometer produce bytes $'\xff.txt' --key $'\xfe' --header h=$'\xfd'", here)
        assert done.returncode == 0, done
        shown = shell.json("consume", "bytes", "--tail", "1")
        assert (shown["key_base64"], shown["headers"]) == ("/g==", [{"name": "h", "value_base64": "/Q=="}])

    def test_another_encoding(self, shell: CommandShell, here: Path) -> None:
        shell.environment["PYTHONIOENCODING"] = "ascii"
        assert b"topic" in shell.run("topic", "list")
        assert b"Usage" in shell.run("topic", "--help")

    def test_interrupted_while_no_broker_answers(self, shell: CommandShell) -> None:
        """A server that accepts and says nothing: the command waits for it until Ctrl-C."""
        with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as silent:
            address = "{}:{}".format(*silent.server_address)
            waiting = shell.start("topic", "list", "--bootstrap-server", address, stderr=subprocess.PIPE)
            connection, _ = silent.get_request()
            assert connection.recv(1), "it has sent its first request"
            waiting.send_signal(signal.SIGINT)
            _, errors = waiting.communicate(timeout=PATIENCE_S)
            connection.close()
        assert (waiting.returncode, errors) == (130, b"Interrupted.\n")

    @pytest.mark.parametrize(
        ("module", "ended"),
        [
            ("click", (-signal.SIGINT, "")),
            ("nilometer.cli.topics", (130, "Interrupted.")),
            ("atexit", (-signal.SIGINT, "")),
        ],
    )
    def test_interrupted_at_its_start_and_at_its_end(
        self, shell: CommandShell, here: Path, module: str, ended: tuple[int, str]
    ) -> None:
        """Ctrl-C while the program is imported, while a command is, and while the process ends."""
        wait = "print('here', flush=True); time.sleep(600)"
        at_end = f"import atexit, time; atexit.register(lambda: exec({wait!r}, {{'time': time}}))"
        at_import = f"""
import sys, time
class Slow:
    def find_spec(self, name, *_):
        if name == {module!r}:
            {wait}
sys.meta_path.insert(0, Slow())
"""
        (here / "sitecustomize.py").write_text(at_end if module == "atexit" else at_import)
        shell.environment["PYTHONPATH"] = str(here)
        running = shell.start(
            "topic", "list", "--help", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert running.stdout is not None
        assert "here\n" in iter(running.stdout.readline, "")  # after the help, if at the end
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=PATIENCE_S)
        assert (running.returncode, errors.strip()) == ended


def test_a_bug_is_one_message_with_its_own_exit_code(
    nilometer: Nilometer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(click.Group, "invoke", broken)
    done = nilometer("topic", "list")
    check(done, 70)
    assert "this is a bug of Nilometer: RuntimeError: planted" in done.err
    monkeypatch.setenv("NILOMETER_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="planted"):
        nilometer("topic", "list")
