"""The cluster's secret in a metadata quorum: encrypted with the nodes' key, rotated, the key changed."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from nilometer.broker import offline_metadata
from nilometer.broker.quorum.key_file import SEALED, KeySealing, QuorumKey
from nilometer.cli.main import run
from nilometer.client.admin.admin import NewTopic
from nilometer.cluster.cluster_secret import ClusterSecrets, decode_secrets
from nilometer.coordination.quorum.commands import PutSecret, decode
from nilometer.runtime import Runtime
from nilometer.runtime.system_disk import SystemDisk
from nilometer.storage.segments.batch_scan import scan
from nilometer.wire.records import decode_records
from support.brokers.quorum_brokers import KEY, QuorumBrokers, write_key
from support.eventually import eventually

TIMEOUT_S = 60.0


def log_of(cluster: QuorumBrokers, broker_id: int) -> Path:
    (path,) = cluster.metadata_folder(broker_id).glob("*.log")
    return path


def stored(cluster: QuorumBrokers, broker_id: int) -> list[PutSecret]:
    """Return the records of the log with a secret."""
    file = SystemDisk().open(str(log_of(cluster, broker_id)), writable=False)
    try:
        commands = [
            decode(record.value)
            for found in scan(file, 0, file.size())
            if not found.header.is_control
            for record in decode_records(found.buffer, found.at, found.header)
            if record.value is not None
        ]
    finally:
        file.close()
    return [one for one in commands if isinstance(one, PutSecret)]


def opened(record: PutSecret, key: str = KEY) -> ClusterSecrets:
    sealing = KeySealing(QuorumKey.of(key.strip().encode()), Runtime.system().entropy)
    return decode_secrets(sealing.unseal(record.number, record.data))


def test_the_secret_is_encrypted_and_rotated_while_brokers_run_and_while_they_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rotated() -> tuple[int, str]:
        code = run(["rotate-secret", "--coordination-config", str(config), "--json"])
        printed = capsys.readouterr()
        return (json.loads(printed.out)["current"] if code == 0 else -code), printed.err

    with QuorumBrokers(tmp_path / "cluster", 2, voters=1) as cluster:
        config = cluster.brokers[1].write_properties(tmp_path / "server.properties")
        (first,) = stored(cluster, 1)
        assert first.data.startswith(SEALED)
        assert run(["log", "dump", str(log_of(cluster, 1)), "--records", "--json"]) == 0
        shown = capsys.readouterr().out
        values = [base64.b64decode(one) for one in re.findall(r'"value_base64": "([^"]*)"', shown)]
        assert [first.data in one for one in values] == [False] * len(values)
        assert [one for one in values if b"(hidden)" in one]
        assert rotated() == (1, "")
        noticed = "rotated: number 1 is current"
        brokers = cluster.brokers.values()
        eventually(lambda: all(noticed in one.output for one in brokers), "it is noticed", TIMEOUT_S)
        cluster.stop(2)
        cluster.stop(1)
        assert rotated() == (2, "")
        secrets = [opened(record) for record in stored(cluster, 1)]
        assert [one.current.number for one in secrets] == [0, 1, 2]
        assert secrets[2].previous == secrets[1].current
        cluster.start()
        cluster.create_topic("t")
        cluster.wait_full_isr("t", TIMEOUT_S)
        elsewhere = run(["rotate-secret", "--data-dir", str(cluster.brokers[1].data_dir)])
        assert elsewhere == 2 and "--coordination-config" in capsys.readouterr().err


def test_the_key_is_changed_on_one_node_after_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    present, previous = "nilometer.quorum.secret.file", "nilometer.quorum.secret.previous.file"
    new_text = "another key, which only the nodes of this quorum have\n"
    old = write_key(tmp_path / "old.key", KEY)
    new = write_key(tmp_path / "new.key", new_text)
    with QuorumBrokers(tmp_path / "cluster") as cluster:
        cluster.create_topic("t")

        def restart_each(settings: dict[str, str]) -> None:
            for broker_id in cluster.brokers:
                cluster.stop(broker_id)
                cluster.change_settings(broker_id, settings)
                cluster.start(broker_id)
                cluster.wait_full_isr("t", TIMEOUT_S)
                after = NewTopic(f"t-{len(cluster.topics())}", 1, 3)
                cluster.operate(lambda admin, one=after: admin.create_topic(one))

        restart_each({present: str(new), previous: str(old)})
        config = cluster.brokers[1].write_properties(tmp_path / "server.properties")
        assert run(["rotate-secret", "--coordination-config", str(config)]) == 0
        capsys.readouterr()
        restart_each({present: str(new)})
        *_, last = stored(cluster, 1)
        assert opened(last, new_text).current.number == 1
        cluster.stop(1)
        cluster.change_settings(1, {present: str(old)})
        cluster.brokers[1].launch()
        refusal = "it does not have the key of nilometer.quorum.secret.file"
        eventually(lambda: refusal in cluster.brokers[1].output, "the former key counts no more", TIMEOUT_S)
        cluster.kill(*cluster.brokers)
        monkeypatch.setattr(offline_metadata, "OPEN_TIMEOUT_S", 1.0)
        assert run(["rotate-secret", "--coordination-config", str(config)]) == 1
        assert "the metadata quorum has no leader after 1 s" in capsys.readouterr().err
