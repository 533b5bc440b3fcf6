"""Delivery to a webhook: what is sent, in which order, how often, and what is remembered."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from nilometer.cli.pipelines.pipeline_commands import pipeline
from nilometer.client.consumer.fetched_records import ConsumerRecord
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run import webhook_delivery
from nilometer.pipeline.run.webhook_delivery import Deliverer, DeliveryNotes, Webhook
from nilometer.pipeline.source.cluster import cluster_reader
from support.pipeline.filled_topics import Sent


class Receiver:
    """A webhook that answers as it is told, and remembers what it was sent."""

    def __init__(self):
        self.taken: list[tuple[str, dict]] = []
        self.answers = defaultdict(list)
        """Statuses to answer an id with before 200; None closes the connection without an answer."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                key = self.headers["Idempotency-Key"]
                status = receiver.answers[key].pop(0) if receiver.answers[key] else 200
                if status is None:
                    self.close_connection = True
                    return
                if status == 200:
                    receiver.taken.append((key, body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format, *args):
                """Nothing: what matters is asserted."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?a=b"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver(monkeypatch):
    monkeypatch.setattr(webhook_delivery, "PAUSE_S", 0.01)
    one = Receiver()
    yield one
    one.close()


def record(message_id, offset, partition=0, value=None):
    body = value if value is not None else json.dumps({"id": message_id, "text": "hello"}).encode()
    return ConsumerRecord("messages", partition, offset, 0, 0, None, body, (), 0)


def deliverer(receiver, tmp_path, problems=None):
    notes = DeliveryNotes(tmp_path / "notes.sqlite")
    return Deliverer(Webhook(receiver.url), notes, (problems or []).append), notes


def test_messages_of_a_partition_arrive_in_order_and_repeats_are_dropped_also_by_the_next_run(
    receiver, tmp_path
):
    first, notes = deliverer(receiver, tmp_path)
    names = ["a", "b", "a", "c"]
    asyncio.run(first.deliver([record(name, n) for n, name in enumerate(names)]))
    assert [key for key, _ in receiver.taken] == ["a", "b", "c"]
    assert (first.totals.delivered, first.totals.repeats) == (3, 1)
    notes.close()
    second, _ = deliverer(receiver, tmp_path)
    asyncio.run(second.deliver([record("b", 9), record("d", 10)]))
    assert [key for key, _ in receiver.taken] == ["a", "b", "c", "d"]
    assert receiver.taken[0][1] == {"id": "a", "text": "hello"}


def test_what_fails_is_sent_again_before_what_lies_behind_it(receiver, tmp_path):
    receiver.answers["a"] = [500, None, 429, 503]
    problems: list[str] = []
    one, _ = deliverer(receiver, tmp_path, problems)
    asyncio.run(one.deliver([record("a", 0), record("b", 1)]))
    assert [key for key, _ in receiver.taken] == ["a", "b"]


def test_what_is_refused_for_good_is_recorded_and_the_rest_goes_on(receiver, tmp_path):
    receiver.answers["a"] = [404]
    one, notes = deliverer(receiver, tmp_path)
    asyncio.run(one.deliver([record("a", 0), record(None, 1, value=b"no json"), record("b", 2)]))
    assert [key for key, _ in receiver.taken] == ["b"]
    refused, unreadable = notes.reasons()
    assert "rejected message a with status 404" in refused
    assert "messages-0 at offset 1" in unreadable
    assert one.totals.refused == 2


def test_an_address_that_is_none_is_refused():
    with pytest.raises(PipelineError, match="not the address of a webhook"):
        Webhook("example.org/hook")


def test_deliverers_are_a_group_and_go_on_where_the_last_one_committed(receiver, topics, tmp_path):
    topic = topics.create(2)

    def send(ids):
        topics.send(topic, [Sent(n % 2, None, json.dumps({"id": one}).encode()) for n, one in enumerate(ids)])

    def deliver():
        given = ["--topic", topic, "--webhook", receiver.url, "--group", f"g-{topic}", "--until-idle"]
        where = ["--bootstrap-server", topics.bootstrap, "--home", str(tmp_path)]
        result = CliRunner().invoke(pipeline, ["deliver", *given, *where])
        assert result.exit_code == 0, result.output
        return result.output

    send([f"m{n}" for n in range(20)])
    assert "20 delivered, 0 repeats dropped" in deliver()
    send(["m3", "m20", "m21"])
    assert "2 delivered, 1 repeats dropped" in deliver()
    assert "0 delivered, 0 repeats dropped" in deliver()
    assert Counter(key for key, _ in receiver.taken) == Counter(f"m{n}" for n in range(22))


def test_a_topic_that_is_not_there_is_said_and_not_waited_for(topics, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_reader, "TOPIC_WAIT_MS", 100)
    where = ("--bootstrap-server", topics.bootstrap, "--home", str(tmp_path))
    result = CliRunner().invoke(
        pipeline, ["deliver", "--topic", "nowhere", "--webhook", "http://127.0.0.1:1/", *where]
    )
    assert result.exit_code == 1
    assert "topic nowhere does not exist" in result.output
