"""A client with few rights, a wrong user or none is told what was refused, never that the cluster is down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.cli.main import run
from nilometer.console.reading.cluster_reader import ClusterReader
from nilometer.console.reading.connection import ClusterConnection
from nilometer.runtime import Runtime
from nilometer.security.sasl import PLAIN_MODULE, client_jaas
from nilometer.wire.errors import ErrorCode, KafkaError
from support.brokers.sasl_broker import PASSWORDS, SaslBroker, sasl_broker
from support.command_line import Nilometer, Outcome

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
REFUSED = (
    "broker 1: it does not describe its replicas (CLUSTER_AUTHORIZATION_FAILED): the user needs DESCRIBE on"
)
UNKNOWN = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    with sasl_broker(tmp_path_factory.mktemp("rights") / "data", AUTHORIZER) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def topics(broker: SaslBroker) -> None:
    """Two topics, and the user bob, who may describe one of them."""
    at = ("--bootstrap-server", broker.open_bootstrap)
    assert run(["topic", "create", "shown", "hidden", *at]) == 0
    allowed = ("--principal", "User:bob", "--operation", "describe", "--topic", "shown")
    assert run(["acl", "add", "allow", *allowed, *at]) == 0


def settings(user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": client_jaas(PLAIN_MODULE, user, password),
    }


@pytest.fixture
def nilometer(
    broker: SaslBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> Nilometer:
    """The command line with the settings that the test is given: (user, password), or None for no user."""
    given = tmp_path / "client.properties"
    who: tuple[str, str] | None = getattr(request, "param", ("alice", PASSWORDS["alice"]))
    lines = [] if who is None else [f"{key}={value}\n" for key, value in settings(*who).items()]
    given.write_text("".join(lines), encoding="utf-8")

    def command(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run([*arguments, "--bootstrap-server", broker.bootstrap, "--command-config", str(given)])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return command


@pytest.mark.quick
@pytest.mark.parametrize("nilometer", [("bob", PASSWORDS["bob"])], indirect=True)
def test_the_status_shows_what_the_rights_allow(nilometer: Nilometer) -> None:
    found = nilometer("status", "--json")
    assert (found.code, found.document["health"]) == (UNKNOWN, "unknown")
    assert REFUSED in found.document["refused"] and REFUSED in found.err
    assert REFUSED in found.document["problems"][0]
    assert [one["state"] for one in found.document["brokers"]] == ["running"]
    assert found.document["controller"] == {"id": 1, "epoch": None}
    assert found.document["partitions"] == {
        "count": 1,
        "offline": [],
        "under_min_isr": [],
        "under_replicated": [],
    }
    text = nilometer("status")
    assert text.code == UNKNOWN and "is in an unknown state; controller 1" in text.out
    for wrong in ("responds", "unavailable", "unreachable"):
        assert wrong not in text.out + text.err


@pytest.mark.parametrize(
    ("nilometer", "why"),
    [
        (
            None,
            "closed by the broker before its first response: its listener may have another security.protocol",
        ),
        (("alice", "wrong"), "Authentication failed"),
    ],
    indirect=["nilometer"],
)
def test_the_status_without_a_user_that_may_log_in(nilometer: Nilometer, why: str) -> None:
    found = nilometer("status", "--json")
    assert (found.code, found.document["health"]) == (UNKNOWN, "unknown")
    assert why in found.document["refused"] and why in found.err
    assert "responds" not in str(found.document["problems"])
    replicas = nilometer("replicas")
    assert replicas.code == 1 and why in replicas.err
    topics = nilometer("topic", "list")
    assert topics.code == 1 and why in topics.err
    assert "`nilometer up` starts a broker" not in topics.err
    assert ("--command-config names a file with these settings" in topics.err) == ("security.protocol" in why)


def test_the_replicas(nilometer: Nilometer) -> None:
    found = nilometer("replicas", "--json")
    assert found.code == 1 and not found.document["complete"]
    (broker,) = found.document["brokers"]
    assert broker["reachable"] and REFUSED.partition(" it ")[2] in broker["failure"]
    assert "unreachable" not in nilometer("replicas").out
    named = nilometer("replicas", "--topic", "hidden")
    assert named.code == 1 and "TOPIC_AUTHORIZATION_FAILED: topic hidden" in named.err


def test_an_empty_list_is_explained(broker: SaslBroker, nilometer: Nilometer) -> None:
    for command, what in (("topic", "topic"), ("group", "group"), ("transaction", "transactional id")):
        found = nilometer(command, "list")
        assert found.code == 0
        assert found.err == f"There is no {what} that this user may see: it needs DESCRIBE on a {what}.\n"
    found = nilometer("transaction", "find-hanging")
    assert "There is no topic that this user may see" in found.err


def test_an_empty_list_of_a_super_user(broker: SaslBroker, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["group", "list", "--bootstrap-server", broker.open_bootstrap]) == 0
    assert capsys.readouterr().err == ""


def test_the_console(broker: SaslBroker) -> None:
    async def look() -> None:
        given = {**settings("bob", PASSWORDS["bob"]), "bootstrap.servers": broker.bootstrap}
        reader = ClusterReader(ClusterConnection(Runtime.system(), given))
        try:
            overview = await reader.overview()
            assert (overview.grade, overview.partitions, overview.controller_id) == ("unknown", 1, 1)
            assert [one.state for one in overview.brokers] == ["running"]
            assert len(overview.problems) == 1 and REFUSED in overview.problems[0]
            topic = await reader.topic("shown")
            assert REFUSED.partition(" it ")[2] in str(topic)
            with pytest.raises(KafkaError) as refused:
                await reader.topic("hidden")
            assert refused.value.code is ErrorCode.topic_authorization_failed
        finally:
            await reader.close()

    asyncio.run(look())
