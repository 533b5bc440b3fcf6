"""Log lines of every format, intact and damaged, and the pipeline's counts for comparison with a census."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nilometer.cli.demo_check import Census

from .filled_topics import Sent, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDED = datetime(2024, 2, 3, 12, 0, tzinfo=UTC)
"""The timestamp of the records, from which lines without a year get theirs."""

HAND_PICKED = rb"""
127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326
127.0.0.1 - - [10/Oct/2000:13:55:36 +0000] "GET /a?b=c#d HTTP/1.0" 304 - "-" "Mozilla/4.08 [en]"
::1 - - [01/Jan/2024:00:00:00 +0530] "GET /\"quoted\" HTTP/1.1" 404 0 "-" "agent with \" in it"
::1 - - [01/Jan/2024:00:00:00 +0000] "-" 408 0
::1 - - [01/Jan/2024:00:00:00 +0000] "GET ?only=query HTTP/1.1" 400 5
::1 - - [01/Jan/2024:00:00:00 +0000] "" 400 5
::1 - - [01/Jan/2024:00:00:00 +0000] "GET /cut" 200 5 "-" "agent cut off
::1 - - [31/Feb/2024:00:00:00 +0000] "GET /no-such-day HTTP/1.1" 200 5
::1 - - [01/Jan/2024:24:00:00 +0000] "GET /no-such-hour HTTP/1.1" 200 5
::1 - - [01/Jan/2024:00:00:00 +0000] "GET /unfinished
::1 - - [01/Jan/2024:00:00:00 +0000] "GET / HTTP/1.1" 20 5
Feb  3 11:59:59 host sshd[812]: error: kex_exchange_identification
Feb  4 11:00:00 host kernel: [    0.000000] Linux version
Dec 31 23:59:59 host cron[1]: (root) CMD (true)
Feb 30 00:00:00 host cron[1]: no such day
<34>Oct 11 22:14:15 mymachine su: 'su root' failed
<191>Feb  1 01:02:03 h app-name: WARNING: the priority wins
Feb  1 01:02:03 h app: WARNING: disk
Feb  1 01:02:03 h app: [notice] bracketed
Feb  1 01:02:03 h app: errors are not an error
Feb  1 01:02:03 h not a tag
2024-02-01T01:02:03.123456+02:00 host systemd[1]: Started Session 1
2024-02-01T01:02:03Z host systemd[1]: (panic) no
2024-02-01T01:02:03 host app: plain
2024-13-01T01:02:03Z host app: no such month
2024-02-01 01:02:03 startup archives unpack
2024-02-01 01:02:03 install libc6:amd64 <none> 2.36
2024-02-01 01:02:03 status half-installed libc6:amd64 2.36
2024-02-01 01:02:03 conffile /etc/x keep
2024-02-01 01:02:03 dance libc6
Start-Date: 2024-02-01  01:02:03
Commandline: apt-get install -y make
Requested-By: someone (1000)
Install: make:amd64 (4.3-4.1)
End-Date: 2024-02-01  01:02:09
End-Date: tomorrow
update-alternatives 2024-02-01 01:02:03: run with --install /usr/bin/pager
update-alternatives 2024-02-01 01:02:03: link group pager updated

a line of no format
2024
{"level": "info"}
""".removeprefix(b"\n").splitlines()
HOSTILE = [
    b"\x00\x01\xff\xfe not utf-8 \xc3(",
    b"ends in CR\r",
    b'::1 - - [01/Jan/2024:00:00:00 +0000] "GET /cr HTTP/1.1" 200 5\r',
    b'::1 - - [01/Jan/2024:00:00:00 +0000] "' + b'\\"' * 100_000,
    b'::1 - - [01/Jan/2024:00:00:00 +0000] "GET /' + b"a" * 200_000 + b'" 200 5',
    b"Feb  1 01:02:03 h " + b"x" * 200_000,
]


def generated(count: int, seed: int) -> list[bytes]:
    """Return ``count`` random lines of every format, intact and damaged."""
    rng = random.Random(seed)
    whole = [line for line in HAND_PICKED if line]
    lines: list[bytes] = []
    for _ in range(count):
        line = bytearray(rng.choice(whole))
        for _ in range(rng.choice((0, 0, 0, 1, 1, 3))):
            at = rng.randrange(len(line))
            match rng.randrange(4):
                case 0:
                    line[at] = rng.choice(b' "[]:\\09aZ-+<>/.')
                case 1:
                    del line[at]
                case 2:
                    line.insert(at, rng.choice(b' "[]:\\09aZ'))
                case _:
                    del line[at:]
            if not line:
                break
        lines.append(bytes(line))
    return lines


def expected(lines: list[bytes]) -> Census:
    census = Census()
    for line in lines:
        census.add(line, RECORDED)
    return census


def counted(spark: SparkSession, output: Path | str) -> Census:
    """Return the counts in the pipeline's table as a Census."""
    counts = spark.read.parquet(f"{output}/counts").collect()
    census = Census()
    for row in counts:
        match row.by:
            case "label":
                census.by_label[row.format, row.label] += row.lines
                census.by_format[row.format] += row.lines
                census.lines += row.lines
            case "name":
                census.by_name[row.format, row.name] += row.lines
            case _:
                census.by_minute[row.format, row.minute] += row.lines
    return census


def send_lines(topics: Topics, lines: list[bytes], topic: str | None = None, partitions: int = 3) -> str:
    topic = topic or topics.create(partitions, prefix="lines")
    at = int(RECORDED.timestamp() * 1000)
    topics.send(topic, [Sent(n % partitions, None, line, at) for n, line in enumerate(lines)])
    return topic


def assert_same(found: Census, wanted: Census) -> None:
    assert found.lines == wanted.lines
    assert found.by_label == wanted.by_label
    assert found.by_minute == wanted.by_minute
    assert found.by_name == wanted.by_name
