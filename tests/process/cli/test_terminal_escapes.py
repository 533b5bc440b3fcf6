"""What a client of the cluster has chosen is shown and never controls the terminal of a user who lists it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.text import Text

import nilometer as package
from nilometer.cli.console import OutputConsole
from support.brokers.nilometer_broker import NilometerBroker
from support.command_shell import CommandShell
from support.eventually import eventually

HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]x[/nope]:smile:\u202e\x9b31m\rz"
SHOWN = rb"\x1b]0;owned\x07\x1b[2J[red]x[/nope]:smile:\u202e\x9b31m\x0dz"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
PRINCIPAL = f"User:{HOSTILE}"
WAIT_S = 60


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandShell]:
    with NilometerBroker(tmp_path_factory.mktemp("broker"), AUTHORIZER) as broker:
        one = CommandShell(broker.bootstrap)
        one.run("topic", "create", "seen")
        one.run("produce", "seen", "--key", HOSTILE, input=f"{HOSTILE}\n".encode())
        reading = ("--group", HOSTILE, "-X", f"client.id={HOSTILE}", "--from-beginning", "--until-end")
        one.run("consume", "seen", *reading)
        one.run("acl", "add", "allow", "--principal", PRINCIPAL, "--operation", "read", "--group", HOSTILE)
        one.run("quota", "set", "producer_byte_rate=1e9", "--user", HOSTILE, "--client", HOSTILE)
        asyncio.run(in_a_transaction(broker.bootstrap))
        yield one


async def in_a_transaction(bootstrap: str) -> None:
    async with package.connect(bootstrap) as kafka, kafka.transaction(HOSTILE) as transaction:
        await transaction.send("seen", b"in a transaction")


def check(shown: bytes) -> None:
    assert CONTROLS.findall(shown.decode()) == []
    assert SHOWN in shown.replace(rb"\rz", rb"\x0dz")  # click quotes some words as Python does


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("group", "list"), 0),
        (("group", "describe", HOSTILE), 0),
        (("group", "describe", f"no {HOSTILE}"), 1),
        (("group", "delete", HOSTILE), 2),
        (("group", "delete-offsets", HOSTILE, "--topic", "seen"), 2),
        (("group", "reset-offsets", HOSTILE, "--topic", "seen", "--to-earliest"), 0),
        (("acl", "list"), 0),
        (("acl", "remove", "--all"), 2),
        (("quota", "list"), 0),
        (("quota", "set", f"{HOSTILE}=1", "--user", "a"), 2),
        (("transaction", "list"), 0),
        (("transaction", "describe", HOSTILE), 0),
        (("transaction", "abort", HOSTILE), 1),
        (("topic", "describe", HOSTILE), 1),
        ((HOSTILE,), 2),
    ],
)
def test_what_is_shown(shell: CommandShell, arguments: tuple[str, ...], code: int) -> None:
    check(shell.run(*arguments, code=code))


def test_the_members_of_a_group(shell: CommandShell) -> None:
    given = ("-X", f"client.id={HOSTILE}", "-X", f"group.instance.id={HOSTILE}")
    member = shell.start("consume", "seen", "--group", f"live {HOSTILE}", *given)
    try:
        listed = ("group", "list", "--state", "Stable")
        eventually(lambda: shell.json(*listed)["groups"], "the member has joined", WAIT_S)
        for part in ("--members", "--offsets"):
            check(shell.run("group", "describe", f"live {HOSTILE}", part))
    finally:
        member.terminate()
        member.wait(WAIT_S)


def test_what_is_styled(capsys: pytest.CaptureFixture[str]) -> None:
    OutputConsole().print(Text(HOSTILE, "bold"), Text.assemble(("x", "red"), HOSTILE))
    shown = capsys.readouterr().out
    assert CONTROLS.findall(shown) == []
    assert shown.count(r"\x1b]0;owned") == shown.count(r"\u202e\x9b31m") == 2


def test_lines_of_a_file(shell: CommandShell, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text(f"{HOSTILE}\n" * 20, encoding="utf-8")
    check(shell.run("pipeline", "formats", "test", str(file)))
