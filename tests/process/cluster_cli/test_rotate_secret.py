"""``nilometer rotate-secret``: on a running cluster, whose brokers notice by themselves."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from nilometer.cli.main import cli
from support.brokers.broker_identity import Identity, ask_proof, prove
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.wire.wire_peer import WirePeer


def rotate(folder: Path) -> str:
    done = CliRunner().invoke(cli, ["rotate-secret", "--data-dir", str(folder)])
    assert done.exit_code == 0, done.output
    return done.output


def test_brokers_go_on_while_the_secret_is_rotated_and_forget_the_old_one(tmp_path: Path) -> None:
    with NilometerCluster(tmp_path, 2) as cluster:
        cluster.create_topic("kept", assignments={0: (1, 2)})
        store = tmp_path / "coordination"
        first = Identity.of_store(store)
        assert "Secret 1 is current now; secret 0 is accepted" in rotate(tmp_path)
        second = Identity.of_store(store)
        for identity in (first, second):  # the new one is learnt at once, as it is named
            with WirePeer(cluster.brokers[1].bootstrap) as peer:
                prove(peer, identity, as_broker=2, to_broker=1)
        rotate(tmp_path)

        def forgotten() -> bool:
            with WirePeer(cluster.brokers[1].bootstrap) as peer:
                return ask_proof(peer, **first.hello(2, 1)).secret_number == 2

        eventually(forgotten, "broker 1 proves itself by the newest secret")
        with WirePeer(cluster.brokers[1].bootstrap) as peer:
            prove(peer, second, as_broker=2, to_broker=1)
        cluster.kill(2)
        cluster.start(2)
        cluster.wait_full_isr("kept")


def test_where_there_is_no_store_none_is_made(tmp_path: Path) -> None:
    for arguments in (["--data-dir", str(tmp_path)], ["--coordination", f"local:{tmp_path}"]):
        done = CliRunner().invoke(cli, ["rotate-secret", *arguments])
        assert done.exit_code == 1
        assert "coordination store" in done.output
    assert list(tmp_path.iterdir()) == []
