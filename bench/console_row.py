"""The row of the console: how long its pages take for a cluster of 1,000 topics, and what they ask of it.

Each page is opened as by a browser that has shown nothing before: what the console has read for another page
is too old by then. Apache Kafka has no console; its brokers would not describe replicas to this one.
"""

from __future__ import annotations

import math
import re
import statistics
import time
import urllib.request
from collections.abc import Mapping
from functools import partial

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.support.console.console_process import console

from nilometer.console.reading.cluster_reader import LISTS_FRESH_MS

from .opening_rows import write_to
from .rows import Column, Numbers, Row
from .systems import CREATE_TIMEOUT_S, GROUPS_AT_ONCE, Nilometer, System

TOPICS = 1_000
PARTITIONS = 10
"""Of each topic."""
GROUPS = 100
"""Each has committed an offset in every partition of the topic that is opened."""
RECORDS = 1_000
"""In the partition whose messages are shown; one in each other topic."""
ROUNDS = 50
CREATED_AT_ONCE = 100
TOPIC = "topic-0"
TIMEOUT_S = 60.0
REQUESTS = re.compile(r"^kafka_network_requestmetrics_requests_total\{.*\} (\S+)$", re.MULTILINE)
TITLES = {
    "overview": "the overview",
    "topics": "topics, the first page",
    "topic": "a topic",
    "messages": "messages of a partition",
    "sorted": "topics by their records",
    "groups": "groups",
}
PATHS = {
    "overview": "/",
    "topics": "/topics",
    "topic": f"/topics/{TOPIC}",
    "messages": f"/topics/{TOPIC}/messages?partition=0",
    "sorted": "/topics?sort=-records",
    "groups": "/groups",
}
APART = (("overview", "topics", "topic", "messages"), ("sorted", "groups"))
"""Pages of one part share no list that the console has read."""


def _fill(system: System, topics: int, groups: int, records: int) -> None:
    names = [f"topic-{number}" for number in range(topics)]
    admin = AdminClient({"bootstrap.servers": system.bootstrap, "log_level": 3})
    for first in range(0, topics, CREATED_AT_ONCE):
        some = [NewTopic(name, PARTITIONS, 1) for name in names[first : first + CREATED_AT_ONCE]]
        for created in admin.create_topics(some, request_timeout=CREATE_TIMEOUT_S).values():
            created.result(CREATE_TIMEOUT_S)
    write_to(system, [(name, 0) for name in names] + [(TOPIC, 0)] * (records - 1))
    for number in range(groups):
        settings = {"bootstrap.servers": system.bootstrap, "group.id": f"group-{number}", "log_level": 3}
        consumer = Consumer(settings)
        offsets = [TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()


def _measure(system: System, topics: int, groups: int, records: int, rounds: int) -> Numbers:
    if not isinstance(system, Nilometer):
        return {}
    system.launch()
    system.wait_ready()
    _fill(system, topics, groups, records)
    took: dict[str, list[float]] = {page: [] for page in PATHS}
    asked: dict[str, list[float]] = {page: [] for page in PATHS}
    with console("--bootstrap-server", system.bootstrap) as url:
        for number in range(rounds + 1):
            for part in APART:
                time.sleep(LISTS_FRESH_MS / 1000)
                for page in part:
                    before = _requests(system)
                    began = time.perf_counter()
                    _read(url + PATHS[page])
                    ms = (time.perf_counter() - began) * 1000
                    if number > 0:  # the first round imports and connects
                        took[page].append(ms)
                        asked[page].append(_requests(system) - before)
    found: dict[str, float] = {}
    for page, each in took.items():
        found |= _summary(page, each, asked[page])
    return found


def _summary(page: str, ms: list[float], requests: list[float]) -> Mapping[str, float]:
    """Requests: the median; what the console reads for its charts comes between some pages."""
    return {
        f"{page}_p50_ms": statistics.median(ms),
        f"{page}_p99_ms": sorted(ms)[math.ceil(0.99 * len(ms)) - 1],
        f"{page}_requests": statistics.median(requests),
    }


def _read(url: str) -> str:
    """Raises urllib.error.URLError, also if the page is one of an error."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as page:
        return page.read().decode()


def _requests(system: Nilometer) -> float:
    """How many requests the broker has been sent so far."""
    return sum(map(float, REQUESTS.findall(_read(system.metrics_url))))


def _columns(page: str) -> tuple[Column, ...]:
    title = TITLES[page]
    return (
        Column(f"{page}_p50_ms", f"{title}, p50", "ms", more_is_better=False, digits=0),
        Column(f"{page}_p99_ms", f"{title}, p99", "ms", more_is_better=False, digits=0),
        Column(f"{page}_requests", f"{title}, requests to the broker", "", more_is_better=False, digits=0),
    )


CONSOLE_ROW = Row(
    "console",
    f"pages of the console, one broker with {TOPICS:,} topics of {PARTITIONS} partitions, {GROUPS} groups",
    tuple(column for page in PATHS for column in _columns(page)),
    measure=partial(_measure, topics=TOPICS, groups=GROUPS, records=RECORDS, rounds=ROUNDS),
    quick=partial(_measure, topics=10, groups=2, records=20, rounds=1),
    settings={"metrics.listener": "127.0.0.1:0", **GROUPS_AT_ONCE},
    once=True,
    on_request=True,
)
