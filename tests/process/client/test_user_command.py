"""``nilometer user`` on a broker with a SASL listener: which users librdkafka can log in as."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from nilometer.cli.main import run
from nilometer.cli.users import PASSWORD_VARIABLE
from support.brokers.sasl_broker import PASSWORDS, SaslBroker, sasl_broker
from support.command_line import Nilometer, Outcome
from support.eventually import eventually

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
WAIT_S = 60.0
SECRET = "cärol, =secret"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    with sasl_broker(tmp_path_factory.mktemp("users") / "data") as running:
        yield running
    assert SECRET not in running.broker.output


@pytest.fixture
def nilometer(
    broker: SaslBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Nilometer:
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)

    def command(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run(["user", *arguments, "--bootstrap-server", broker.open_bootstrap])
        printed = capsys.readouterr()
        assert SECRET not in printed.out + printed.err
        return Outcome(code, printed.out, printed.err)

    return command


def can_log_in(broker: SaslBroker, mechanism: str, password: str, user: str = "carol") -> bool:
    """Wait until librdkafka is served or refused."""
    errors: list[confluent_kafka.KafkaError] = []
    client = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "error_cb": errors.append,
            "log_level": 0,
        }
    )
    outcomes: list[bool] = []

    def is_decided() -> bool:
        try:
            client.list_topics(timeout=1)
            outcomes.append(True)
        except confluent_kafka.KafkaException:
            client.poll(0)
            if confluent_kafka.KafkaError._AUTHENTICATION in {error.code() for error in errors}:
                outcomes.append(False)
        return bool(outcomes)

    eventually(is_decided, f"{user} is served or refused", WAIT_S)
    return outcomes[0]


def credentials(nilometer: Nilometer, *names: str) -> dict[str, dict[str, int]]:
    return {
        user["name"]: {each["mechanism"]: each["iterations"] for each in user["credentials"]}
        for user in nilometer("list", *names, "--json").document["users"]
    }


def test_a_user_is_added_changed_and_removed(
    broker: SaslBroker, nilometer: Nilometer, tmp_path: Path
) -> None:
    assert not can_log_in(broker, SHA_512, SECRET)
    added = nilometer("add", "carol", "--json")
    both = [{"mechanism": name, "iterations": 4096} for name in (SHA_256, SHA_512)]
    assert (added.code, added.document) == (0, {"users": [{"name": "carol", "credentials": both}]})
    assert credentials(nilometer, "carol") == {"carol": {SHA_256: 4096, SHA_512: 4096}}
    assert can_log_in(broker, SHA_256, SECRET)
    assert can_log_in(broker, SHA_512, SECRET)

    (tmp_path / "password").write_text("another\n")
    changing = ("--password-file", str(tmp_path / "password"), "--mechanism", SHA_512, "--iterations", "5000")
    assert nilometer("add", "carol", *changing).code == 0
    assert credentials(nilometer) == {
        "carol": {SHA_256: 4096, SHA_512: 5000},
        **{user: {SHA_256: 4096, SHA_512: 4096} for user in PASSWORDS},
    }
    assert can_log_in(broker, SHA_512, "another")
    assert not can_log_in(broker, SHA_512, SECRET)
    assert can_log_in(broker, SHA_256, SECRET)

    removed = nilometer("remove", "carol", "--mechanism", SHA_256, "--yes", "--json")
    assert removed.document == {"users": [{"name": "carol", "credentials": both[:1]}]}
    assert credentials(nilometer, "carol") == {"carol": {SHA_512: 5000}}
    assert not can_log_in(broker, SHA_256, SECRET)
    assert "carol" in nilometer("remove", "carol", "--yes").out
    assert not can_log_in(broker, SHA_512, "another")
    assert set(credentials(nilometer)) == set(PASSWORDS)


@pytest.mark.parametrize("arguments", [("list", "nosuch"), ("remove", "nosuch")])
def test_a_user_that_does_not_exist(nilometer: Nilometer, arguments: tuple[str, ...]) -> None:
    outcome = nilometer(*arguments)
    assert outcome.code == 1
    assert "RESOURCE_NOT_FOUND" in outcome.err and "nosuch" in outcome.err
    assert "`nilometer user list` shows the users." in outcome.err


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("add", "dave", "--iterations", "4095"), 2, "4095 is not in the range 4096<=x<=16384"),
        (("add", "dave", "--iterations", "16385"), 2, "16385 is not in the range"),
        (("add", "dave", "--mechanism", "PLAIN"), 2, "'PLAIN' is not one of"),
        (("add", "dave", "--password-file", "/nowhere"), 2, "'/nowhere': No such file"),
        (("add", ""), 1, "UNACCEPTABLE_CREDENTIAL: Username must not be empty"),
    ],
)
def test_what_is_wrong_is_named(
    nilometer: Nilometer, arguments: tuple[str, ...], code: int, why: str
) -> None:
    outcome = nilometer(*arguments)
    assert outcome.code == code and why in outcome.err, outcome
    assert "dave" not in credentials(nilometer)
