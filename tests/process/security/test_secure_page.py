"""The page about securing a cluster, run word for word with one broker, on a scratch copy of this machine."""

from __future__ import annotations

from pathlib import Path

from support.documentation.code_blocks import DOCS, code_blocks
from support.documentation.shell_samples import shell_blocks
from support.scratch_machine import needs_scratch_machine, run_on_scratch_machine

PAGE = "how-to/secure.md"
PASSWORD = "open-sesame-7731"
BROKER = "node.id=1\nlog.dirs=/var/lib/kafka-data\n"
PREPARE = f"""
ip address add 10.0.0.1/32 dev lo
echo 127.0.0.1 broker1.example.org >> /etc/hosts
export NILOMETER_USER_PASSWORD={PASSWORD}

restart() {{  # with the settings of standard input; the rest is the options of a client that is let in
  if [ "$broker" ]; then kill $broker; wait $broker; fi
  cat > server.properties
  nilometer broker --config server.properties > broker.out 2>&1 &
  broker=$!
  tries=0
  until nilometer status "$@" > status.out 2>&1; do
    kill -0 $broker && [ $((tries += 1)) -lt 100 ] || {{ cat status.out broker.out; exit 1; }}
  done
}}
"""


def given(settings: str, options: str) -> str:
    return f"restart {options} <<'END'\n{settings}END\n"


@needs_scratch_machine
def test_the_page_closes_a_cluster_step_by_step(tmp_path: Path) -> None:
    listeners, client, authorizer = code_blocks(PAGE, "properties")
    authority, certificate, users, listed, rights, checks = shell_blocks((DOCS / PAGE).read_text("utf-8"))
    closed = listeners.replace("PLAINTEXT://10.0.0.1:9092", "PLAINTEXT://127.0.0.1:9092")
    assert closed.count("127.0.0.1") == 2
    as_admin = "--bootstrap-server broker1.example.org:9094 --command-config client.properties"
    by_name = "--bootstrap-server 10.0.0.1:9092"
    script = [
        PREPARE,
        *(authority, certificate),
        given(BROKER + listeners, by_name),
        f"nilometer topic create orders {by_name}",
        users,
        "cat > client.properties <<'END'\n" + client.replace("…", PASSWORD) + "END",
        listed,
        given(BROKER + listeners + authorizer, as_admin),
        rights,
        given(BROKER + closed + authorizer, as_admin),
        *(f"{check} && exit 1 || [ $? -eq 1 ]" for check in checks.splitlines()),
        "echo closed; kill $broker; wait $broker",
    ]
    work = tmp_path / "work"
    work.mkdir()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    printed = run_on_scratch_machine(scratch, work, "\n".join(script))
    assert "billing" in printed and "orders" in printed
    assert printed.splitlines()[-1] == "closed"
