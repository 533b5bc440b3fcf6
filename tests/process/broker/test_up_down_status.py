"""`nilometer up`, `down` and `status`: a cluster on this machine, as its user sees it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nilometer.cli import cluster_options
from nilometer.wire.api_keys import ApiKey
from support.brokers.cluster_shell import TIMEOUT_S, Shell, answers
from support.eventually import eventually
from support.metrics.scrape import Scrape, page
from support.ports import HOST, free_ports, is_free, neighbouring_ports, ports_with_others_above
from support.wire.wire_peer import WirePeer, make


def test_one_broker_up_and_down(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    up = shell.run("up", "--port", str(port), "--detach")
    assert (up.returncode, up.stdout) == (0, f"bootstrap.servers={HOST}:{port}\n"), up.stderr
    assert answers(port), "it is ready when the command says so"
    status = shell.run("status", "--json")
    assert status.returncode == 0, status.stdout
    (broker,) = json.loads(status.stdout)["brokers"]
    assert broker == {"id": 1, "pid": broker["pid"], "host": HOST, "port": port, "state": "running"}
    assert os.kill(broker["pid"], 0) is None
    table = shell.run("status")
    assert table.returncode == 0
    assert "running" in table.stdout and str(port) in table.stdout
    secured = tmp_path / "client.properties"
    secured.write_text("security.protocol=SSL\n")
    assert shell.run("status", "--command-config", str(secured)).returncode == 3, "there is no TLS"
    monkeypatch.setenv("NILOMETER_COMMAND_CONFIG", str(secured))
    assert shell.run("status").returncode == 0, "the variable is for servers that run elsewhere"
    monkeypatch.delenv("NILOMETER_COMMAND_CONFIG")
    again = shell.run("up", "--detach")
    assert (again.returncode, again.stdout) == (0, up.stdout), "it is up: nothing to start, same ports"
    assert f"To stop: nilometer down --data-dir {shell.data_dir}\n" in again.stderr
    assert shell.pids() == [broker["pid"]]
    down = shell.run("down")
    assert (down.returncode, down.stdout) == (0, "Stopped 1 broker.\n")
    assert (shell.data_dir / "broker-1" / "logs" / ".kafka_cleanshutdown").exists()
    stopped = shell.run("status", "--json")
    assert stopped.returncode == 3, "a cluster of which nothing runs is unavailable"
    down = {**broker, "pid": None, "state": "down", "reason": "it was stopped"}
    assert json.loads(stopped.stdout)["brokers"] == [down]
    assert shell.run("down").stdout == "Stopped 0 brokers.\n"


def test_commands_find_the_cluster_that_runs_in_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = free_ports(2)

    def nilometer(*arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "nilometer.cli", *arguments],
            cwd=tmp_path,
            env={**os.environ, "NILOMETER_BOOTSTRAP_SERVER": f"{HOST}:{elsewhere}"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    assert nilometer("up", "--port", str(here), "--detach")[0] == 0
    try:
        code, _, said = nilometer("topic", "create", "found")
        assert (code, said) == (0, f"Connecting to the cluster in .nilometer/data: {HOST}:{here}\n")
        code, _, said = nilometer("topic", "list", "--bootstrap-server", f"{HOST}:{here}")
        assert (code, said) == (0, "")
        monkeypatch.chdir(tmp_path)
        assert cluster_options._local_servers() == f"{HOST}:{here}"
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert cluster_options._local_servers() is None, "the folder of another user"
    finally:
        nilometer("down")
    code, _, said = nilometer("topic", "list")
    assert code != 0 and str(elsewhere) in said, "the variable counts where no cluster runs"


def test_up_starts_just_what_is_down(shell: Shell) -> None:
    port = neighbouring_ports(3)
    up = shell.run("up", "--brokers", "3", "--port", str(port), "--detach")
    assert up.returncode == 0, up.stderr
    assert up.stdout == "bootstrap.servers=" + ",".join(f"{HOST}:{port + n}" for n in range(3)) + "\n"
    before = shell.pids()
    assert before[1] is not None
    os.kill(before[1], signal.SIGKILL)
    eventually(lambda: shell.pids()[1] is None, "it is known to be down")
    assert "Broker 2 is down: its process was killed" in shell.run("status").stdout
    again = shell.run("up", "--detach")
    assert (again.returncode, again.stdout) == (0, up.stdout), again.stderr
    after = shell.pids()
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] not in (None, before[1])
    assert all(answers(port + number) for number in range(3))
    down = shell.run("down")
    assert (down.returncode, down.stdout) == (0, "Stopped 3 brokers.\n")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_up_in_the_foreground_stops_what_it_started(shell: Shell, how: signal.Signals) -> None:
    (port,) = free_ports(1)
    up = shell.start("up", "--port", str(port))
    assert up.stdout is not None
    assert up.stdout.readline() == f"bootstrap.servers={HOST}:{port}\n"
    assert answers(port)
    (pid,) = shell.pids()
    assert pid is not None
    up.send_signal(how)
    assert up.wait(TIMEOUT_S) == 0
    assert shell.pids() == [None]
    assert (shell.data_dir / "broker-1" / "logs" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("broker_id", [1, 2, 3])
def test_a_signal_while_it_starts_leaves_nothing_behind(
    shell: Shell, how: signal.Signals, broker_id: int
) -> None:
    port = neighbouring_ports(3)
    up = shell.start("up", "--brokers", "3", "--port", str(port))
    eventually((shell.data_dir / f"broker-{broker_id}" / "broker.log").exists, "brokers are on their way")
    up.send_signal(how)
    assert up.wait(TIMEOUT_S) in (0, 1, 130, 143)
    assert not shell.processes()
    assert shell.pids() == [None] * 3
    eventually(lambda: all(is_free(port + number) for number in range(3)), "the ports are free")


def test_a_broker_whose_start_command_has_gone_stops_by_itself(tmp_path: Path) -> None:
    """No record says that it runs, so no command could stop it."""
    (port,) = free_ports(1)
    read_end, write_end = os.pipe()
    settings = {
        "node.id": "1",
        "listeners": f"PLAINTEXT://{HOST}:{port}",
        "log.dirs": str(tmp_path / "logs"),
        "nilometer.coordination": f"local:{tmp_path / 'coordination'}",
    }
    properties = tmp_path / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    broker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "nilometer.broker",
            *("--config", properties),
            *("--ready-fd", str(write_end)),
        ],
        pass_fds=(write_end,),
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(read_end)
    os.close(write_end)
    _, said = broker.communicate(timeout=TIMEOUT_S)
    assert broker.returncode == 1
    assert "ended before it was ready" in said
    assert (tmp_path / "logs" / ".kafka_cleanshutdown").exists()


def test_a_busy_port_fails_with_the_reason_and_starts_nothing(shell: Shell, tmp_path: Path) -> None:
    port = neighbouring_ports(2)
    other = Shell(tmp_path / "other")
    assert other.run("up", "--port", str(port + 1), "--detach").returncode == 0
    try:
        up = shell.run("up", "--brokers", "2", "--port", str(port), "--detach")
        assert up.returncode == 1
        assert "broker 2 did not start" in up.stderr
        assert f"cannot listen on {HOST}:{port + 1}" in up.stderr
        assert "Traceback" not in up.stderr
        assert shell.pids() == [None, None]
        assert is_free(port)
    finally:
        assert other.run("down").returncode == 0


@pytest.mark.parametrize("override", ["no.such.key=1", "num.partitions=none"])
def test_a_bad_setting_fails_by_name(shell: Shell, override: str) -> None:
    (port,) = free_ports(1)
    up = shell.run("up", "--port", str(port), "--detach", "--override", override)
    assert up.returncode != 0
    assert override.partition("=")[0] in up.stderr
    assert shell.pids() == [None]


def test_an_override_without_a_value_is_wrong_use(shell: Shell) -> None:
    up = shell.run("up", "--override", "num.partitions")
    assert up.returncode == 2
    assert "KEY=VALUE" in up.stderr
    assert not shell.data_dir.exists()


@pytest.mark.parametrize("key", ["node.id", "broker.id"])
def test_an_id_is_not_overridden(shell: Shell, key: str) -> None:
    up = shell.run("up", "--override", f"{key}=7")
    assert up.returncode == 2
    assert key in up.stderr
    assert not shell.data_dir.exists()


def test_no_cluster_is_said(shell: Shell) -> None:
    status = shell.run("status")
    assert status.returncode == 1
    assert f"No cluster in {shell.data_dir}" in status.stderr
    as_json = shell.run("status", "--json")
    assert (as_json.returncode, json.loads(as_json.stdout)) == (1, {"brokers": []})
    down = shell.run("down")
    assert (down.returncode, down.stdout) == (1, "")
    assert f"there is no cluster in {shell.data_dir}, and nothing was stopped: run this where" in down.stderr
    assert not shell.data_dir.exists(), "asking creates nothing"


def test_a_pid_that_another_process_has_by_now_is_left_alone(shell: Shell) -> None:
    """The broker was killed, and its pid belongs to this very process."""
    (port,) = free_ports(1)
    assert shell.run("up", "--port", str(port), "--detach").returncode == 0
    (pid,) = shell.pids()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: shell.pids() == [None], "it is known to be down")
    record = shell.data_dir / "broker-1" / "process.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "pid": os.getpid()}))
    assert shell.pids() == [None]
    assert shell.run("down").stdout == "Stopped 0 brokers.\n"
    assert shell.run("up", "--detach").returncode == 0
    assert answers(port)


def test_settings_reach_the_brokers(shell: Shell) -> None:
    (port,) = free_ports(1)
    up = shell.run("up", "--port", str(port), "--detach", "--override", "num.partitions=7")
    assert up.returncode == 0, up.stderr
    with WirePeer(f"{HOST}:{port}") as peer:
        resource = make(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            "DescribeConfigsResource",
            resource_type=4,
            resource_name="1",
            configuration_keys=("num.partitions",),
        )
        told = peer.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=(resource,)).results[0].configs[0]
    assert (told.value, told.config_source) == ("7", 4)


def test_each_broker_has_metrics_whose_address_is_printed(shell: Shell) -> None:
    port = neighbouring_ports(2)
    up = shell.run("up", "--brokers", "2", "--port", str(port), "--detach")
    assert up.returncode == 0, up.stderr
    urls = dict(re.findall(r"Metrics of broker (\d): http://127\.0\.0\.1:(\d+)/metrics", up.stderr))
    assert list(urls) == ["1", "2"]
    for metrics_port in map(int, urls.values()):
        assert page(metrics_port, "/readyz").status == 200
        assert Scrape(metrics_port)("nilometer_broker_registered") == 1
    again = shell.run("up", "--detach")
    assert again.stderr == up.stderr, "they run already: their addresses are printed again"


def test_metrics_are_on_the_ports_that_were_asked_for(shell: Shell) -> None:
    port = neighbouring_ports(4)
    first = port + 2
    up = shell.run("up", "--brokers", "2", "--port", str(port), "--metrics-port", str(first), "--detach")
    assert up.returncode == 0, up.stderr
    for index in (0, 1):
        assert f"Metrics of broker {index + 1}: http://127.0.0.1:{first + index}/metrics" in up.stderr
        assert page(first + index, "/readyz").status == 200
    refused = shell.run("up", "--metrics-port", str(first + 1), "--detach")
    assert refused.returncode == 2
    assert f"cannot move its metrics to http://127.0.0.1:{first + 1}/metrics" in refused.stderr
    assert shell.run("down").returncode == 0
    again = shell.run("up", "--detach")
    assert again.stderr == up.stderr, "the brokers keep their ports"


def test_the_log_of_a_broker_has_the_wanted_form_and_a_bounded_size(shell: Shell) -> None:
    (port,) = free_ports(1)
    bounds = {"nilometer.log.file.max.bytes": "2000", "nilometer.log.files": "2"}
    overrides = [word for key, value in bounds.items() for word in ("--override", f"{key}={value}")]
    levels = ("--log-level", "INFO", "--log-level", "nilometer.broker.control=DEBUG")
    up = shell.run("up", "--port", str(port), "--detach", *levels, "--log-format", "json", *overrides)
    assert up.returncode == 0, up.stderr
    assert shell.run("down").returncode == 0
    folder = shell.data_dir / "broker-1"
    files = sorted(folder.glob("broker.log*"))
    assert [path.name for path in files] == ["broker.log", "broker.log.1"]
    assert all(path.stat().st_size <= 2000 for path in files)
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert {line["broker"] for line in lines} == {1}


def test_a_level_that_is_none_is_named(shell: Shell) -> None:
    (port,) = free_ports(1)
    up = shell.run("up", "--port", str(port), "--detach", "--log-level", "LOUD")
    assert up.returncode == 1
    assert "nilometer.log.level" in up.stderr and "LOUD" in up.stderr


def test_options_that_the_brokers_of_a_folder_cannot_follow(shell: Shell) -> None:
    port = neighbouring_ports(2)
    up = shell.run("up", "--brokers", "2", "--port", str(port), "--detach")
    assert up.returncode == 0, up.stderr
    (another,) = free_ports(1)
    for options, reason in (
        (("--brokers", "1"), "has 2 brokers, and `up` removes none"),
        (("--port", str(another)), f"broker 1 of {shell.data_dir} runs on {HOST}:{port}"),
        (("--coordination", "zookeeper://127.0.0.1:2181"), "which holds their metadata"),
    ):
        refused = shell.run("up", *options, "--detach")
        assert refused.returncode == 2 and reason in refused.stderr, refused
    assert shell.run("up", "--brokers", "2", "--port", str(port), "--detach").stdout == up.stdout
    assert shell.run("down").stdout == "Stopped 2 brokers.\n"


def test_three_brokers_with_a_quorum_of_their_own_and_a_fourth(shell: Shell) -> None:
    port = ports_with_others_above(4)
    up = shell.run("up", "--quorum", "--port", str(port), "--detach")
    assert up.returncode == 0, up.stderr
    assert up.stdout.count(f"{HOST}:") == 3
    for option, reason in (
        (("--coordination", "local"), "have quorum, which holds their metadata"),
        (("--quorum", "--secure"), "were created without it"),
        (("--quorum", "--coordination", "local"), "--quorum does not go together with --coordination"),
    ):
        refused = shell.run("up", *option, "--detach")
        assert refused.returncode == 2 and reason in refused.stderr, refused
    assert shell.run("up", "--quorum", "--brokers", "4", "--detach").returncode == 0
    assert shell.run("status").returncode == 0
    dump = [sys.executable, "-m", "nilometer.cli", "metadata", "dump", "--data-dir", str(shell.data_dir)]
    told = subprocess.run(dump, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert told.returncode == 0, told.stderr
    assert "BrokerRegistered broker_id=1 " in told.stdout
    assert shell.run("down").stdout == "Stopped 4 brokers.\n"
    moved = neighbouring_ports(4)
    assert shell.run("up", "--port", str(moved), "--detach").returncode == 0
    assert answers(moved)
    assert shell.run("down").returncode == 0
    assert not (shell.data_dir / "coordination").exists()
