"""The settings of a metadata quorum: what chooses it, who takes part, and what is refused by name."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest

from nilometer.broker.quorum.key_file import (
    KeySealing,
    Proving,
    QuorumKey,
    UnusableKey,
    key_id,
    read_key,
    read_key_files,
)
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.quorum import Admittance, QuorumSettings
from nilometer.cluster.cluster_secret import ProofExchange, Side, broker_proof, is_proof
from nilometer.config import ConfigError
from nilometer.coordination.store import StoreDamaged, StoreRefused
from nilometer.runtime import Runtime
from nilometer.wire.own_apis import ProveBrokerRequest

THREE = {
    "node.id": "2",
    "process.roles": "broker,controller",
    "controller.quorum.voters": "3@127.0.0.1:9003,1@127.0.0.1:9001,2@127.0.0.1:9002",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9002",
}


def quorum(**changes: str | None) -> QuorumSettings:
    found = configured(changes).quorum
    assert found is not None
    return found


def configured(changes: dict[str, str | None]) -> BrokerConfig:
    texts = {**THREE, **{key.replace("_", "."): text for key, text in changes.items()}}
    return BrokerConfig({key: text for key, text in texts.items() if text is not None})


def refusal(**changes: str | None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        configured(dict(changes))
    return caught.value


def test_voters_are_in_the_order_of_their_ids_and_know_where_they_listen() -> None:
    found = quorum()
    assert [str(one) for one in found.voters] == [f"{n}@127.0.0.1:900{n}" for n in (1, 2, 3)]
    assert (str(found.own), found.is_controller, found.is_alone) == ("2@127.0.0.1:9002", True, False)
    assert found.admittance is Admittance.LOOPBACK
    assert found.directory == "/tmp/kafka-logs"
    assert (found.session_timeout_ms, found.heartbeat_ms) == (9_000, 2_000)
    assert found.registration_timeout_ms == 60_000
    assert quorum(metadata_log_dir="/meta/").directory == "/meta"


def test_a_start_waits_for_a_quorum_as_long_as_the_setting_says_and_for_other_stores_two_sessions() -> None:
    asked = {"initial_broker_registration_timeout_ms": "7000"}
    assert configured(asked).start_timeout_ms == 7_000
    local = {"nilometer_coordination": "local", "zookeeper_session_timeout_ms": "5000"}
    assert configured({**asked, **local}).start_timeout_ms == 10_000


def test_an_explicit_store_wins() -> None:
    assert configured({"nilometer_coordination": "local"}).quorum is None
    assert configured({"zookeeper_connect": "localhost:2181"}).quorum is None
    assert configured({"process_roles": None}).quorum is None, "as with brokers that use ZooKeeper"
    chosen = refusal(nilometer_coordination="quorum", process_roles=None)
    assert "set process.roles" in str(chosen)


def test_a_broker_alone_observes_and_needs_no_listener_of_controllers() -> None:
    found = quorum(node_id="4", process_roles="broker", listeners="PLAINTEXT://127.0.0.1:9092")
    assert (found.listeners, found.own, found.is_controller) == ((), None, False)


def test_only_the_only_voter_forms_a_quorum_of_one_and_others_observe_it() -> None:
    only = "1@127.0.0.1:9001"
    listeners = "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9001"
    assert quorum(node_id="1", controller_quorum_voters=only, listeners=listeners).is_alone
    observer = {"process_roles": "broker", "listeners": "PLAINTEXT://127.0.0.1:9092"}
    assert not quorum(node_id="2", controller_quorum_voters=only, **observer).is_alone


def test_bootstrap_servers_name_nodes_of_a_quorum_that_is_there() -> None:
    found = quorum(
        controller_quorum_voters=None, controller_quorum_bootstrap_servers="127.0.0.1:9001,127.0.0.1:9003"
    )
    assert [str(one) for one in found.servers] == ["127.0.0.1:9001", "127.0.0.1:9003"]
    assert (found.voters, found.is_alone) == ((), False)
    both = refusal(controller_quorum_bootstrap_servers="127.0.0.1:9001")
    assert both.key == "controller.quorum.voters"


def test_what_contradicts_itself_is_refused_by_name() -> None:
    assert "does not name this node, 7" in str(refusal(node_id="7"))
    assert "has no controller" in str(refusal(process_roles="broker"))
    only_clients = {"listeners": "PLAINTEXT://127.0.0.1:9092"}
    assert refusal(controller_listener_names=None, **only_clients).key == "controller.listener.names"
    assert "no listener CONTROLLER" in str(refusal(listeners="PLAINTEXT://127.0.0.1:9092"))
    assert "id@host:port" in str(refusal(controller_quorum_voters="2@127.0.0.1:9002,127.0.0.1:9001"))
    assert "named twice" in str(refusal(controller_quorum_voters="2@127.0.0.1:1,2@127.0.0.1:2"))
    assert "host:port" in str(refusal(controller_quorum_voters="2@127.0.0.1"))
    assert "cannot connect" in str(refusal(controller_quorum_voters="2@0.0.0.0:9002"))
    assert "at most half" in str(refusal(broker_heartbeat_interval_ms="5000"))


def test_nodes_on_other_machines_need_a_key_or_certificates() -> None:
    voters = "2@10.0.0.2:9002,1@10.0.0.1:9001"
    assert refusal(controller_quorum_voters=voters).key == "nilometer.quorum.secret.file"
    found = quorum(controller_quorum_voters=voters, nilometer_quorum_secret_file="/etc/quorum.key")
    assert found.admittance is Admittance.KEY


LOGIN = {
    "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "sasl_mechanism_controller_protocol": "PLAIN",
    "listener_name_controller_sasl_enabled_mechanisms": "PLAIN",
    "listener_name_controller_plain_sasl_jaas_config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="node" password="p" '
        'user_node="p";'
    ),
    "super_users": "User:node",
}


def test_nodes_log_in_by_plain_on_this_machine_and_by_tls_on_others() -> None:
    found = quorum(**LOGIN)
    assert found.admittance is Admittance.LOGIN
    assert (found.security.mechanism, found.security.user) == ("PLAIN", "node")
    assert found.sasl["CONTROLLER"].mechanisms == ("PLAIN",)
    everywhere = quorum(**LOGIN, listeners="PLAINTEXT://:9092,CONTROLLER://:9002")
    assert [one.host for one in everywhere.listeners] == ["127.0.0.1"]
    assert configured(dict(LOGIN)).sasl == {}, "of listeners for clients"
    elsewhere = refusal(**LOGIN, controller_quorum_voters="2@10.0.0.2:9002,1@10.0.0.1:9001")
    assert elsewhere.key == "listener.security.protocol.map"
    assert "10.0.0.1, 10.0.0.2" in str(elsewhere) and "Use SASL_SSL" in str(elsewhere)
    observing = {"node_id": "4", "process_roles": "broker", "listeners": "PLAINTEXT://127.0.0.1:9092"}
    assert quorum(**LOGIN, **observing).admittance is Admittance.LOGIN


@pytest.mark.parametrize(
    ("changed", "key", "said"),
    [
        (
            {"listener_name_controller_sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256"},
            "sasl.enabled.mechanisms",
            "enables SCRAM-SHA-256: the nodes of a metadata quorum log in by PLAIN or OAUTHBEARER; the users "
            "of SCRAM are in the metadata",
        ),
        (
            {"sasl_mechanism_controller_protocol": "SCRAM-SHA-512"},
            "sasl.mechanism.controller.protocol",
            "is SCRAM-SHA-512: the nodes",
        ),
        (
            {"sasl_mechanism_controller_protocol": None},
            "sasl.mechanism.controller.protocol",
            "is GSSAPI: the",
        ),
        (
            {"listener_name_controller_sasl_enabled_mechanisms": "OAUTHBEARER"},
            "sasl.oauthbearer.jwks.endpoint.url",
            "",
        ),
        ({"super_users": "User:other"}, "super.users", "must name the user by which controllers log in"),
        (
            {"listener_name_controller_plain_sasl_jaas_config": None},
            "listener.name.controller.plain.sasl.jaas.config",
            "must be given",
        ),
        (
            {"sasl_mechanism_controller_protocol": "OAUTHBEARER"},
            "sasl.oauthbearer.token.endpoint.url",
            "OAUTHBEARER needs",
        ),
        (
            {
                "listener_security_protocol_map": (
                    "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,SECOND:PLAINTEXT"
                ),
                "controller_listener_names": "CONTROLLER,SECOND",
                "listeners": THREE["listeners"] + ",SECOND://127.0.0.1:9003",
            },
            "listener.security.protocol.map",
            "SECOND is PLAINTEXT: all must have it, or none",
        ),
    ],
)
def test_logins_that_cannot_work_are_refused(changed: dict[str, str | None], key: str, said: str) -> None:
    found = refusal(**(LOGIN | changed))
    assert (found.key, said in str(found)) == (key, True), str(found)


def test_a_listener_on_every_address_without_proof_is_bound_to_this_machine_only() -> None:
    found = quorum(listeners="PLAINTEXT://:9092,CONTROLLER://:9002")
    assert [one.host for one in found.listeners] == ["127.0.0.1"]
    keyed = quorum(
        listeners="PLAINTEXT://:9092,CONTROLLER://:9002", nilometer_quorum_secret_file="/etc/quorum.key"
    )
    assert [one.host for one in keyed.listeners] == [""]


# ── the key ─────────────────────────────────────────────────────────────────────────────────────
def test_a_key_that_others_can_read_or_that_is_short_is_refused(tmp_path: Path) -> None:
    path, disk = tmp_path / "key", Runtime.system().disk
    with pytest.raises(UnusableKey, match="No such file"):
        read_key(disk, str(path))
    path.write_text("k" * 64)
    path.chmod(0o640)
    with pytest.raises(UnusableKey, match="chmod 600"):
        read_key(disk, str(path))
    path.chmod(0o600)
    assert read_key_files(disk, str(path)) == QuorumKey.of(b"k" * 64)
    path.write_text("k" * 31)
    with pytest.raises(UnusableKey, match="has 31 bytes, and must have 32 to "):
        read_key(disk, str(path))
    assert os.access(path, os.R_OK)


def test_while_the_key_is_changed_every_node_knows_every_other() -> None:
    old, new = b"o" * 32, b"n" * 32
    rolled = [QuorumKey.of(old), QuorumKey.of(new, old), QuorumKey.of(new)]
    for initiator, acceptor in itertools.product(rolled, repeat=2):
        is_known = abs(rolled.index(initiator) - rolled.index(acceptor)) <= 1
        proving = Proving(acceptor, Runtime.system().entropy, 1, "127.0.0.1:9001")
        nonce, name = b"n" * 32, key_id(initiator.secret)
        answer = proving.answer(ProveBrokerRequest(broker_id=3, nonce=nonce, key_id=name))
        assert answer is not None
        exchange = ProofExchange("", 3, -1, nonce, answer.nonce)
        proved = [one for one in initiator.secrets if is_proof(one, Side.ACCEPTOR, exchange, answer.proof)]
        assert bool(proved) is is_known
        for secret in initiator.secrets:
            proof = broker_proof(secret, Side.INITIATOR, exchange)
            assert not proved or is_proof(proved[0], Side.INITIATOR, exchange, proof) is (secret == proved[0])
        if proved:
            own = ProveBrokerRequest(proof=broker_proof(proved[0], Side.INITIATOR, exchange))
            assert proving.answer(own) is not None and proving.is_proved


# ── the secret under the key ────────────────────────────────────────────────────────────────────
def sealing(content: bytes | None, previous: bytes | None = None) -> KeySealing:
    key = None if content is None else QuorumKey.of(content, previous)
    return KeySealing(key, Runtime.system().entropy)


def test_a_secret_is_read_with_the_key_it_was_sealed_with() -> None:
    secret = b'{"format":1,"current":"c2VjcmV0"}'
    old, new = b"o" * 32, b"n" * 32
    sealed = sealing(old).seal(7, secret)
    assert sealed != sealing(old).seal(7, secret), "two have not the same nonce"
    assert secret not in sealed and b"c2VjcmV0" not in sealed
    assert sealing(old).unseal(7, sealed) == sealing(new, old).unseal(7, sealed) == secret
    assert sealing(new, old).seal(8, secret) != sealed
    with pytest.raises(StoreRefused, match=r"is encrypted with the key [0-9a-f]{16}, and .* is another one"):
        sealing(new).unseal(7, sealed)
    with pytest.raises(StoreRefused, match="is not given"):
        sealing(None).unseal(7, sealed)
    damaged = [sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :] for at in range(9, len(sealed))]
    for number, data in [(8, sealed), *((7, one) for one in (*damaged, sealed[:20], sealed[:9]))]:
        with pytest.raises(StoreDamaged):
            sealing(old).unseal(number, data)
    assert sealing(None).seal(7, secret) == secret
    assert sealing(old).unseal(7, secret) == secret, "of a quorum that had no key"


def test_a_key_needs_the_library_that_encrypts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(StoreRefused, match=r"pip install 'nilometer\[secure\]'"):
        sealing(b"k" * 32).seal(0, b"{}")


def test_a_previous_key_needs_a_present_one(tmp_path: Path) -> None:
    assert "is not" in str(refusal(nilometer_quorum_secret_previous_file="/etc/old.key"))
    disk = Runtime.system().disk
    paths = [tmp_path / name for name in ("new", "old")]
    for path, content in zip(paths, ("n" * 32, "o" * 32), strict=True):
        path.touch(0o600)
        path.write_text(content)
    assert read_key_files(disk, *map(str, paths)) == QuorumKey.of(b"n" * 32, b"o" * 32)
    paths[1].chmod(0o644)
    with pytest.raises(UnusableKey, match=r"secret\.previous\.file .* can be read by others"):
        read_key_files(disk, *map(str, paths))


def test_a_proof_is_accepted_once_and_only_with_the_key() -> None:
    key, other = QuorumKey.of(b"k" * 32), QuorumKey.of(b"o" * 32)
    nonce = b"n" * 32
    for used, is_accepted in ((key, True), (other, False)):
        proving = Proving(key, Runtime.system().entropy, 1, "127.0.0.1:9001")
        assert proving.answer(ProveBrokerRequest(broker_id=3, nonce=b"short")) is None
        answer = proving.answer(ProveBrokerRequest(broker_id=3, nonce=nonce))
        assert answer is not None
        exchange = ProofExchange("", 3, -1, nonce, answer.nonce)
        assert answer.proof == broker_proof(key.secret, Side.ACCEPTOR, exchange)
        proof = ProveBrokerRequest(proof=broker_proof(used.secret, Side.INITIATOR, exchange))
        assert (proving.answer(proof) is not None) is is_accepted
        assert proving.is_proved is is_accepted
        assert proving.answer(proof) is None
        assert proving.node_id == 3
