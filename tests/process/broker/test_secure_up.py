"""`nilometer up --secure`, and users that are added before the first broker starts."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from nilometer.cli.exporter import Exporter, Selection
from nilometer.config import parse_properties
from nilometer.local.local_cluster import PORTS_APART
from nilometer.runtime import Runtime
from nilometer.security.sasl import parse_jaas
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import api, encode_request
from support.brokers.cluster_shell import COMMAND, TIMEOUT_S, Shell
from support.metrics.scrape import Scrape
from support.ports import HOST, free_ports, ports_with_others_above

WAIT_S = 60.0


def settings_of(shell: Shell, name: str) -> dict[str, str]:
    path = shell.data_dir / "security" / name
    return parse_properties(path.read_text(), str(path))


def password_of(settings: dict[str, str]) -> str:
    return parse_jaas(settings["sasl.jaas.config"]).options["password"]


def librdkafka(shell: Shell, name: str, bootstrap: str) -> dict[str, str]:
    """The settings of a file, as librdkafka has them."""
    settings = settings_of(shell, name)
    user = parse_jaas(settings["sasl.jaas.config"]).options
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": settings["security.protocol"],
        "sasl.mechanism": settings["sasl.mechanism"],
        "sasl.username": user["username"],
        "sasl.password": user["password"],
        "ssl.ca.location": settings["ssl.truststore.location"],
    }


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMAND), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def test_a_secure_cluster_from_up_to_down(shell: Shell) -> None:
    (port,) = free_ports(1)
    up = shell.run("up", "--secure", "--port", str(port), "--detach")
    assert up.returncode == 0, up.stderr
    bootstrap = f"{HOST}:{port}"
    config = shell.data_dir / "security" / "client.properties"
    assert up.stdout.splitlines()[:2] == [f"bootstrap.servers={bootstrap}", f"command.config={config}"]
    at = ("--bootstrap-server", bootstrap)

    # the printed command works as it is
    printed = up.stdout.splitlines()[2].partition("nilometer ")[2].split()
    made = command(*printed)
    assert made.returncode == 0, made.stderr
    elsewhere = command("topic", "create", "other", *at, "--command-config", str(config))
    assert elsewhere.returncode == 1 and "TOPIC_AUTHORIZATION_FAILED" in elsewhere.stderr
    plain = command("topic", "list", *at)
    assert plain.returncode == 1, "there is no PLAINTEXT listener"

    _check_librdkafka(shell, bootstrap)
    asyncio.run(_check_exporter({**settings_of(shell, "admin.properties"), "bootstrap.servers": bootstrap}))
    status = shell.run("status", "--json")
    assert status.returncode == 0, status.stdout + status.stderr
    (broker,) = json.loads(status.stdout)["brokers"]
    passwords = [password_of(settings_of(shell, name)) for name in ("admin.properties", "client.properties")]
    shown = (
        Path(f"/proc/{broker['pid']}/cmdline").read_text()
        + Path(f"/proc/{broker['pid']}/environ").read_text()
    )
    log = (shell.data_dir / "broker-1" / "broker.log").read_text()
    assert not [one for one in passwords if one in shown + log + up.stdout + up.stderr]

    assert shell.run("down").returncode == 0
    again = shell.run("up", "--detach")
    assert again.returncode == 0, again.stderr
    assert again.stdout == up.stdout
    listed = command("topic", "list", "--json", *at, "--command-config", str(config))
    assert [one["name"] for one in json.loads(listed.stdout)["topics"]] == ["demo-1", "demo-rdkafka"]
    json_text = json.loads(shell.run("up", "--detach", "--json").stdout)
    assert json_text["command_config"] == str(config)


def test_a_secure_cluster_whose_metadata_is_in_a_quorum(shell: Shell) -> None:
    port = ports_with_others_above(4)
    up = shell.run("up", "--secure", "--quorum", "--port", str(port), "--detach")
    assert up.returncode == 0, up.stderr
    bootstrap = ",".join(f"{HOST}:{port + place}" for place in range(3))
    assert up.stdout.splitlines()[0] == f"bootstrap.servers={bootstrap}"
    _check_librdkafka(shell, bootstrap)
    config = str(shell.data_dir / "security" / "client.properties")
    listing = ("topic", "list", "--json", "--bootstrap-server", bootstrap)
    assert command(*listing).returncode == 1, "there is no PLAINTEXT listener"
    wrong = shell.data_dir / "wrong.properties"
    wrong.write_text((shell.data_dir / "security" / "client.properties").read_text().replace("demo", "other"))
    refused = command(*listing, "--command-config", str(wrong))
    assert refused.returncode == 1 and "SASL_AUTHENTICATION_FAILED" in refused.stderr, refused.stderr
    key = shell.data_dir / "security" / "quorum.key"
    assert key.stat().st_mode & 0o777 == 0o600
    for is_tls in (True, False):
        assert not is_served(port + PORTS_APART, trust_of(shell) if is_tls else None)

    assert shell.run("up", "--brokers", "4", "--detach").returncode == 0
    assert shell.run("status").returncode == 0
    rotated = shell.run("rotate-secret")
    assert "Secret 1 is current" in rotated.stdout, rotated.stderr
    assert shell.run("down").returncode == 0
    rotated = shell.run("rotate-secret")
    assert "Secret 2 is current" in rotated.stdout, rotated.stderr
    assert shell.run("up", "--detach").returncode == 0, "its settings and users stay"
    listed = command(*listing, "--command-config", config)
    assert [one["name"] for one in json.loads(listed.stdout)["topics"]] == ["demo-rdkafka"]


def is_served(port: int, trusted: ssl.SSLContext | None) -> bool:
    """Whether a node of the quorum answers a request of who has proved nothing, with or without TLS."""
    with socket.create_connection((HOST, port), timeout=WAIT_S) as plain:
        connection = plain if trusted is None else trusted.wrap_socket(plain, server_hostname=HOST)
        request = api(ApiKey.DESCRIBE_CLUSTER, 1).request(include_cluster_authorized_operations=False)
        try:
            connection.sendall(encode_request(1, "stranger", request))
            return connection.recv(1) != b""
        except OSError:
            return False
        finally:
            connection.close()


def trust_of(shell: Shell) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=shell.data_dir / "security" / "authority.pem")


def _check_librdkafka(shell: Shell, bootstrap: str) -> None:
    client = librdkafka(shell, "client.properties", bootstrap)
    admin = AdminClient(client)
    admin.create_topics([NewTopic("demo-rdkafka", 1, 1)])["demo-rdkafka"].result(WAIT_S)
    producer = confluent_kafka.Producer({**client, "transactional.id": "demo-writer"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("demo-rdkafka", b"value")
    producer.commit_transaction(WAIT_S)
    consumer = confluent_kafka.Consumer(
        {**client, "group.id": "demo-readers", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe(["demo-rdkafka"])
        found = consumer.poll(WAIT_S)
        assert found is not None and found.error() is None and found.value() == b"value"
    finally:
        consumer.close()


async def _check_exporter(client: dict[str, str]) -> None:
    exporter = Exporter(Runtime.system(), client, Selection())
    try:
        port = await exporter.serve(HOST, 0)
        scrape = await asyncio.to_thread(Scrape, port)
        assert scrape("kafka_topic_partitions", topic="demo-rdkafka") == 1
    finally:
        await exporter.close()


def test_the_users_of_the_folder_stay(shell: Shell, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    assert shell.run("up", "--secure", "--port", str(port), "--detach").returncode == 0
    security = shell.data_dir / "security"
    at = ("--bootstrap-server", f"{HOST}:{port}", "--command-config", str(security / "admin.properties"))
    before = password_of(settings_of(shell, "admin.properties"))
    for name, file in (("admin", "admin.properties"), ("broker", "brokers.properties")):
        refused = command("user", "remove", name, "--yes", *at)
        assert refused.returncode == 1 and "Nothing was changed" in refused.stderr, refused.stderr
        assert str(security / file) in refused.stderr
    (tmp_path / "new").write_text("quite=New;1")
    given = ("--password-file", str(tmp_path / "new"), *at)
    refused = command("user", "add", "broker", *given)
    assert refused.returncode == 1 and str(security / "brokers.properties") in refused.stderr
    (tmp_path / "odd").write_text('with " it')
    odd = command("user", "add", "admin", "--password-file", str(tmp_path / "odd"), *at)
    assert odd.returncode == 2 and str(security / "admin.properties") in odd.stderr
    assert password_of(settings_of(shell, "admin.properties")) == before

    changed = command("user", "add", "admin", *given)
    assert changed.returncode == 0 and str(security / "admin.properties") in changed.stderr, changed.stderr
    assert password_of(settings_of(shell, "admin.properties")) == "quite=New;1" != before
    assert (security / "admin.properties").stat().st_mode & 0o777 == 0o600
    assert command("user", "list", *at).returncode == 0
    assert shell.run("status").returncode == 0
    unsaid = command("user", "remove", "demo", *at)
    assert unsaid.returncode == 2 and f"{security / 'client.properties'} is of no use then" in unsaid.stderr
    assert command("user", "remove", "demo", "--yes", *at).returncode == 0
    assert shell.run("down").returncode == 0
    offline_options = ("--offline", "--data-dir", str(shell.data_dir), *given[:2])
    offline = command("user", "add", "broker", *offline_options)
    assert offline.returncode == 1 and str(security / "brokers.properties") in offline.stderr
    changed = command("user", "add", "admin", *offline_options)
    assert changed.returncode == 0 and str(security / "admin.properties") in changed.stderr


def test_no_console_without_a_user(shell: Shell) -> None:
    refused = shell.run("up", "--secure", "--console", "0")
    assert refused.returncode == 2
    assert "nilometer console --command-config" in " ".join(refused.stderr.split()), refused.stderr
    assert not shell.data_dir.exists()


def test_a_cluster_without_security_is_not_made_secure(shell: Shell) -> None:
    (port,) = free_ports(1)
    assert shell.run("up", "--port", str(port), "--detach").returncode == 0
    refused = shell.run("up", "--secure", "--detach")
    assert refused.returncode == 2
    assert "were created without it" in refused.stderr
    assert not (shell.data_dir / "security").exists()


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("open-sesame-7731\n")
    return path


def test_a_user_is_added_before_the_first_broker_starts(shell: Shell, password_file: Path) -> None:
    add = ("user", "add", "admin", "--offline", "--data-dir", str(shell.data_dir))
    done = command(*add, "--password-file", str(password_file), "--mechanism", "SCRAM-SHA-256")
    assert done.returncode == 0, done.stderr
    assert "SCRAM-SHA-256" in done.stdout
    (port,) = free_ports(1)
    overrides = [
        "security.inter.broker.protocol=SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-256",
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram."
        'ScramLoginModule required username="admin" password="open-sesame-7731";',
        f"listeners=SASL_PLAINTEXT://{HOST}:{port}",
        "node.id=1",
        f"log.dirs={shell.data_dir / 'broker-1' / 'logs'}",
        f"nilometer.coordination=local:{shell.data_dir / 'coordination'}",
    ]
    properties = shell.data_dir / "server.properties"
    properties.write_text("\n".join(overrides) + "\n")
    ready_command = [str(COMMAND), "broker", "--config", str(properties)]
    broker = subprocess.Popen(ready_command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        client = {
            "bootstrap.servers": f"{HOST}:{port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "admin",
            "sasl.password": "open-sesame-7731",
        }
        assert 1 in AdminClient(client).list_topics(timeout=WAIT_S).brokers
        running = command(*add, "--password-file", str(password_file))
        assert running.returncode == 1
        assert "brokers run" in running.stderr and "Use --bootstrap-server" in running.stderr
    finally:
        broker.terminate()
        _, log = broker.communicate(timeout=TIMEOUT_S)
    assert "open-sesame" not in log


def test_what_offline_needs_is_said(tmp_path: Path, password_file: Path) -> None:
    given = ("--password-file", str(password_file))
    online = command("user", "add", "admin", "--data-dir", str(tmp_path), *given)
    assert online.returncode == 2 and "are for --offline" in online.stderr
    both = ("--data-dir", str(tmp_path), "--coordination", f"local:{tmp_path}")
    twice = command("user", "add", "admin", "--offline", *both, *given)
    assert twice.returncode == 2 and "either --data-dir or --coordination" in twice.stderr
