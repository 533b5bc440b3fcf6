"""The page about three machines, in three namespaces of a scratch machine: with a quorum of the brokers, and
with an ensemble of ZooKeeper."""

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
        zoo, *_ = shell_blocks((DOCS / "zookeeper.md").read_text(encoding="utf-8"))
        for number in MACHINES:
            data = zoo.replace("/var/lib/zookeeper", f"/var/lib/zookeeper-{number}")
            script.append(file(f"zoo-{number}.cfg", data))
        script.append(each(ZOOKEEPER))
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
        "echo done",
    ]
    for name in ("scratch", "work"):
        (tmp_path / name).mkdir()
    printed = run_on_scratch_machine(tmp_path / "scratch", tmp_path / "work", "\n".join(script))
    assert printed.splitlines()[-1] == "done"
