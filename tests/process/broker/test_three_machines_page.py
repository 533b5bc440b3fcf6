"""The page about three machines, in three namespaces of a scratch machine: with a quorum of the brokers, with
an ensemble of ZooKeeper, and moved from the one to the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.coordination.zookeeper_server import CLASSPATH, JVM
from support.documentation.code_blocks import DOCS, code_blocks
from support.documentation.shell_samples import shell_blocks
from support.scratch_machine import needs_scratch_machine, run_on_scratch_machine

PAGE = "how-to/three-machines.md"
MACHINES = (1, 2, 3)
NETWORK = """
ip link add bridge0 type bridge
ip address add 10.9.0.254/24 dev bridge0
ip link set bridge0 up
"""
MACHINE = """
ip netns add machineN
ip link add port-N type veth peer name eth0 netns machineN
ip link set port-N master bridge0 up
ip -n machineN address add 10.9.0.N/24 dev eth0
ip -n machineN link set eth0 up
ip -n machineN link set lo up
echo 10.9.0.N brokerN zkN >> /etc/hosts
mkdir /var/lib/zookeeper-N
echo N > /var/lib/zookeeper-N/myid
"""
ZOOKEEPER = f"""
ip netns exec machineN java {" ".join(JVM)} -cp {":".join(map(str, CLASSPATH))} \
  org.apache.zookeeper.server.quorum.QuorumPeerMain zoo-N.cfg > zookeeper-N.out 2>&1 &
"""
BROKER = """
ip netns exec machineN nilometer broker --config N.properties > broker-N.out 2>&1 &
brokerN=$!
"""
WAIT = """
reached() {  # a state, as an exit code of status, and how many brokers run
  tries=0
  until code=0; nilometer status --json --bootstrap-server broker1:9092 > status.json || code=$?
        [ $code = $1 ] && [ $(grep -o '"state": *"running"' status.json | wc -l) = $2 ]; do
    [ $((tries += 1)) -lt 200 ] || { cat status.json broker-1.out; exit 1; }
  done
}
"""

LOST = """
kill -9 $broker1
wait $broker1 || true
rm -r /var/lib/nilometer/1
"""
OBSERVES = """
tries=0
looks() { nilometer cluster quorum describe --bootstrap-server broker2:9092 --json 2>&1 | tr -d ' \\n'; }
until looks | grep -q '"observers":\\[{'; do
  [ $((tries += 1)) -lt 200 ] || { cat broker-1.out; exit 1; }
done
"""
STOP = """
systemctl() {
  [ "$*" = "stop nilometer@1" ]
  kill $broker1 $broker2 $broker3
  wait $broker1 $broker2 $broker3
}
"""
"""The page stops the brokers by systemd, which does not run here: the one command on each machine."""
VOTERS = """
voters() {
  nilometer cluster quorum describe --json --bootstrap-server broker1:9092 |
    python -c 'import json, sys; print(len(json.load(sys.stdin)["voters"]))'
}
tries=0
until [ "$(voters)" = 3 ]; do [ $((tries += 1)) -lt 200 ] || { cat broker-*.out; exit 1; }; done
"""


def each(text: str) -> str:
    return "".join(text.replace("N", str(number)) for number in MACHINES)


def file(name: str, text: str) -> str:
    return f"cat > {name} <<'END'\n{text}END\n"


def with_zookeeper(properties: str, instead: str) -> str:
    """Return the properties with those lines in place of the ones about the quorum."""
    of_quorum = ("process.roles", "node.id", "controller.", "nilometer.quorum.")
    lines = [line for line in properties.splitlines() if not line.startswith(of_quorum)]
    kept = "\n".join(lines).replace(",CONTROLLER://0.0.0.0:9093", "")
    assert "CONTROLLER" not in kept
    return f"{instead}{kept}\n"


def of_machine(number: int, properties: str) -> str:
    for on_page in ("node.id=1", "//broker1:", "/var/lib/nilometer/1"):
        assert on_page in properties
        properties = properties.replace(on_page, on_page.replace("1", str(number)))
    return file(f"{number}.properties", properties)


def ensemble() -> list[str]:
    """The servers of the page about ZooKeeper, one on each machine."""
    zoo, *_ = shell_blocks((DOCS / "zookeeper.md").read_text(encoding="utf-8"))
    files = [
        file(f"zoo-{number}.cfg", zoo.replace("/var/lib/zookeeper", f"/var/lib/zookeeper-{number}"))
        for number in MACHINES
    ]
    return [*files, each(ZOOKEEPER)]


def run_to_its_end(script: list[str], folder: Path) -> None:
    for name in ("scratch", "work"):
        (folder / name).mkdir()
    printed = run_on_scratch_machine(folder / "scratch", folder / "work", "\n".join([*script, "echo done"]))
    assert printed.splitlines()[-1] == "done"


@needs_scratch_machine
@pytest.mark.parametrize("store", ["quorum", "zookeeper"])
def test_the_cluster_of_the_page_says_what_the_page_says(store: str, tmp_path: Path) -> None:
    properties, instead = code_blocks(PAGE, "properties")
    key, *_, checks, replacement, _copied, _described = shell_blocks(
        (DOCS / PAGE).read_text(encoding="utf-8")
    )
    script = [NETWORK, each(MACHINE)]
    if store == "zookeeper":
        properties = with_zookeeper(properties, instead)
        script += ensemble()
    else:
        script.append(key)
    script += [of_machine(number, properties) for number in MACHINES]
    script += [each(BROKER), WAIT, "reached 0 3", checks]
    if store == "quorum":
        answered = replacement.replace("remove 1 ", "remove 1 --yes ")
        assert answered != replacement
        script += [LOST, BROKER.replace("N", "1"), OBSERVES, f"({answered})", "reached 0 3"]
    script += [
        "kill -9 $broker3; reached 1 2",
        "echo written | nilometer produce orders --bootstrap-server broker1:9092",
        "kill -9 $broker2; reached 3 1",
    ]
    run_to_its_end(script, tmp_path)


@needs_scratch_machine
def test_the_cluster_of_the_page_moves_from_zookeeper_to_a_quorum(tmp_path: Path) -> None:
    properties, instead = code_blocks(PAGE, "properties")
    key, *_, checks, _replacement, copied, described = shell_blocks((DOCS / PAGE).read_text(encoding="utf-8"))
    joining = f"{properties}controller.quorum.auto.join.enable=true\n"
    script = [NETWORK, each(MACHINE), *ensemble()]
    script += [of_machine(number, with_zookeeper(properties, instead)) for number in MACHINES]
    script += [each(BROKER), WAIT, "reached 0 3", checks]
    script.append("echo written before | nilometer produce orders --bootstrap-server broker1:9092")
    script += [key, STOP, copied]
    script += [of_machine(number, joining) for number in MACHINES]
    script += [each(BROKER), "reached 0 3", VOTERS, described]
    script += [
        "nilometer consume orders --from-beginning --count 1 --bootstrap-server broker1:9092 > read",
        "grep -q 'written before' read",
    ]
    run_to_its_end(script, tmp_path)
