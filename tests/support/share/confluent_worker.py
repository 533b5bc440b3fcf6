"""A worker of a queue with the share consumer of confluent-kafka, which librdkafka has as a preview.

Arguments, jobs and output are those of tests/go/share_worker. It cannot renew locks: ``long`` is accepted.
"""

from __future__ import annotations

import json
import signal
import sys
import time

from confluent_kafka import AcknowledgeType, Message, ShareConsumer

FOREVER_S = 3600.0


def how_it_ends(kind: str, deliveries: int) -> AcknowledgeType:
    if kind == "bad":
        return AcknowledgeType.REJECT
    if kind == "poison" or (kind == "flaky" and deliveries == 1):
        return AcknowledgeType.RELEASE
    return AcknowledgeType.ACCEPT


def take(consumer: ShareConsumer, message: Message, mode: str) -> None:
    if message.error() is not None:
        print("failed", message.error(), flush=True)
        return
    job = json.loads(message.value() or b"")
    deliveries = message.delivery_count() or 0
    print("took", job["kind"], job["number"], deliveries, flush=True)
    if mode == "work":
        consumer.acknowledge(message, how_it_ends(job["kind"], deliveries))


def main(servers: str, topic: str, group: str, mode: str) -> None:
    settings = {
        "bootstrap.servers": servers,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 50,
    }
    consumer = ShareConsumer(settings)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        consumer.subscribe([topic])
        while True:
            messages = consumer.poll(1.0)
            for message in messages:
                take(consumer, message, mode)
            if mode == "hold" and messages:
                time.sleep(FOREVER_S)
            for partition, error in consumer.commit_sync().items():
                if error is not None:
                    print("failed", partition, error, flush=True)
    finally:
        consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
