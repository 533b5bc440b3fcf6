"""``nilometer acl`` and Kafka's ``kafka-acls.sh`` on one broker: each shows and removes the other's ACLs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from nilometer.cli.main import run
from support.authorization.prepared import AUTHORIZER
from support.brokers.nilometer_broker import NilometerBroker
from support.command_line import Nilometer, Outcome
from support.kafka.java_driver import JavaDriver
from support.kafka.tool_case import CLASSES

READ_ORDERS = {
    "resource": "TOPIC",
    "name": "orders",
    "pattern": "LITERAL",
    "principal": "User:alice",
    "host": "*",
    "operation": "READ",
    "permission": "ALLOW",
}
DESCRIBE_ORDERS = {**READ_ORDERS, "operation": "DESCRIBE"}
DENY_WRITE = {
    **READ_ORDERS,
    "name": "ord",
    "pattern": "PREFIXED",
    "host": "10.0.0.1",
    "operation": "WRITE",
    "permission": "DENY",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    settings = {"authorizer.class.name": AUTHORIZER, "super.users": "User:admin;User:ANONYMOUS"}
    with NilometerBroker(tmp_path_factory.mktemp("acl-command") / "data", settings) as running:
        yield running
    assert "Traceback" not in running.output


@pytest.fixture
def nilometer(broker: NilometerBroker, capsys: pytest.CaptureFixture[str]) -> Iterator[Nilometer]:
    def command(*arguments: str, bootstrap: bool = True) -> Outcome:
        capsys.readouterr()
        servers = ["--bootstrap-server", broker.bootstrap] if bootstrap else []
        code = run(["acl", *arguments, *servers])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    yield command
    command("remove", "--principal", "User:alice", "--yes")
    assert command("list", "--json").document["acls"] == []


def listed(nilometer: Nilometer, *options: str) -> list[dict[str, str]]:
    return nilometer("list", "--json", *options).document["acls"]


def test_acls_are_added_listed_and_removed(nilometer: Nilometer) -> None:
    reading = ("--principal", "User:alice", "--operation", "read,describe", "--topic", "orders")
    assert nilometer("add", "allow", *reading).code == 0
    denying = ("--principal", "User:alice", "--operation", "write", "--topic", "ord")
    added = nilometer("add", "deny", *denying, "--prefixed", "--host", "10.0.0.1", "--json")
    assert added.document["acls"] == [DENY_WRITE]
    assert listed(nilometer) == [DENY_WRITE, READ_ORDERS, DESCRIBE_ORDERS]
    assert listed(nilometer, "--topic", "ord", "--prefixed") == [DENY_WRITE]
    assert listed(nilometer, "--operation", "read") == [READ_ORDERS]
    assert listed(nilometer, "--group", "orders") == []
    removed = nilometer("remove", "--topic", "orders", "--yes", "--json")
    assert removed.document["acls"] == [READ_ORDERS, DESCRIBE_ORDERS]
    assert listed(nilometer) == [DENY_WRITE]
    assert "User:alice" in nilometer("list").out


def test_several_of_each_make_every_combination(nilometer: Nilometer) -> None:
    who = ("--principal", "User:alice", "--principal", "User:eve")
    what = ("--operation", "read", "--operation", "write", "--topic", "s1", "--topic", "s2")
    added = nilometer("add", "deny", *who, *what, "--json").document["acls"]
    expected = set(product(("User:alice", "User:eve"), ("READ", "WRITE"), ("s1", "s2")))
    assert {(one["principal"], one["operation"], one["name"]) for one in added} == expected
    assert len(added) == len(listed(nilometer)) == 8
    eve = ("--topic", "s1", "--principal", "User:eve")
    assert len(listed(nilometer, *eve, "--operation", "read,write")) == 2
    removed = nilometer("remove", *eve, "--topic", "s2", "--yes", "--json")
    assert len(removed.document["acls"]) == 4
    assert {one["principal"] for one in listed(nilometer)} == {"User:alice"}


def test_a_name_removes_no_acl_of_a_prefix(nilometer: Nilometer) -> None:
    who = ("--principal", "User:alice", "--operation", "read", "--topic", "pay")
    assert nilometer("add", "allow", *who).code == nilometer("add", "allow", *who, "--prefixed").code == 0
    removed = nilometer("remove", "--topic", "pay", "--yes", "--json").document["acls"]
    assert [one["pattern"] for one in removed] == ["LITERAL"]
    assert [one["pattern"] for one in listed(nilometer, "--topic", "pay")] == ["PREFIXED"]
    nothing = nilometer("remove", "--topic", "pay", "--yes")
    assert nothing.code == 1 and "no ACL is selected, and nothing was removed" in nothing.err
    unsaid = nilometer("remove", "--topic", "pay", "--prefixed")
    assert unsaid.code == 2 and "TOPIC pay PREFIXED User:alice * READ ALLOW" in unsaid.err
    removed = nilometer("remove", "--topic", "pay", "--prefixed", "--yes", "--json").document["acls"]
    assert [one["pattern"] for one in removed] == ["PREFIXED"]
    assert nilometer("add", "allow", *who).code == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("add", "allow", "--topic", "t", "--operation", "read"), "give --principal and --operation"),
        (("add", "allow", "--principal", "alice", "--operation", "read", "--topic", "t"), "form type:name"),
        (("add", "allow", "--principal", "User:a", "--operation", "read"), "name a resource"),
        (
            ("add", "allow", "--principal", "User:a", "--operation", "fly", "--topic", "t"),
            "is one of all, read",
        ),
        (("remove",), "say which ACLs to remove, or give --all"),
        (("list", "--principal", "alice"), "form type:name"),
    ],
)
def test_what_is_wrong_is_named(nilometer: Nilometer, arguments: tuple[str, ...], why: str) -> None:
    outcome = nilometer(*arguments)
    assert outcome.code == 2 and why in outcome.err


def test_without_an_authorizer_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with NilometerBroker(tmp_path / "data") as broker:
        assert run(["acl", "list", "--bootstrap-server", broker.bootstrap]) == 1
    assert "SECURITY_DISABLED: No Authorizer is configured" in capsys.readouterr().err


@pytest.mark.java
def test_kafkas_tool(broker: NilometerBroker, nilometer: Nilometer) -> None:
    with JavaDriver() as java:

        def tool(*arguments: str) -> str:
            given = ["--bootstrap-server", broker.bootstrap, *arguments]
            told = java.run("tool", **{"class": CLASSES["kafka-acls.sh"]}, arguments=given, input="")
            assert told["status"] == 0, told["output"]
            return str(told["output"])

        tool("--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "orders")
        tool(
            "--add",
            *("--deny-principal", "User:alice", "--deny-host", "10.0.0.1", "--operation", "Write"),
            *("--topic", "ord", "--resource-pattern-type", "prefixed"),
        )
        assert listed(nilometer) == [DENY_WRITE, READ_ORDERS]
        shown = tool("--list", "--principal", "User:alice")
        assert "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)" in shown
        assert "patternType=PREFIXED" in shown
        tool("--add", "--allow-principal", "User:alice", "--consumer", "--topic", "t", "--group", "g")
        tool(
            "--remove",
            "--force",
            "--allow-principal",
            "User:alice",
            "--operation",
            "Read",
            "--topic",
            "orders",
        )
        names = {(each["resource"], each["name"]) for each in listed(nilometer)}
        assert names == {("TOPIC", "ord"), ("TOPIC", "t"), ("GROUP", "g")}
