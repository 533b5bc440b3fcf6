"""Delivery to a webhook: what is sent, in which order, how often, and what is remembered."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from nilometer.cli.pipelines import pipeline_deliver_command
from nilometer.cli.pipelines.pipeline_commands import pipeline
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run import webhook_delivery
from nilometer.pipeline.run.webhook_delivery import Deliverer, DeliveryNotes, Webhook
from nilometer.pipeline.source.cluster import cluster_reader
from support.authority import Authority
from support.eventually import becomes, eventually
from support.pipeline.filled_topics import Sent


class Receiver:
    """A webhook that responds as a test wants, and records what it was sent."""

    def __init__(self):
        self.taken: list[tuple[str, dict]] = []
        self.arrived: list[tuple[str, float]] = []
        self.answers = defaultdict(list)
        """What to respond to an id before 200: a status, the bytes of a response, or None for no response.

        One piece of a list of bytes is sent each 50 ms.
        """
        self.always = None
        """The status for every message, if any."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                text = self.rfile.read(int(self.headers["Content-Length"]))
                body = json.loads(text, parse_int=str, parse_float=str)
                key = self.headers["Idempotency-Key"]
                receiver.arrived.append((key, time.monotonic()))
                given = receiver.answers[key].pop(0) if receiver.answers[key] else receiver.always or 200
                if not isinstance(given, int):
                    self.close_connection = True
                    for piece in given or ():
                        if receiver.closed.wait(0.05):
                            return
                        try:
                            self.wfile.write(piece)
                        except OSError:
                            return
                    return
                if given == 200:
                    receiver.taken.append((key, body))
                self.send_response(given)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format, *args):
                """Nothing: what matters is asserted."""

        self.closed = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?a=b"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def ids(self):
        return [key for key, _ in self.taken]

    def close(self):
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver(monkeypatch):
    monkeypatch.setattr(webhook_delivery, "PAUSE_S", 0.01)
    one = Receiver()
    yield one
    one.close()


def record(message_id, offset, partition=0, value=None, topic="messages"):
    body = value if value is not None else json.dumps({"id": message_id, "text": "hello"}).encode()
    return ConsumerRecord(topic, partition, offset, 0, 0, b"key", body, (), 0)


def deliverer(receiver, tmp_path, problems=None, **more):
    notes = DeliveryNotes(tmp_path / "notes.sqlite", "messages")
    said = problems if problems is not None else []
    return Deliverer(Webhook(receiver.url), notes, said.append, **more), notes


def deliver_all(one, *records):
    async def work():
        for each in records:
            assert await one.deliver(each)

    asyncio.run(work())
    return one.totals


def test_messages_of_a_partition_arrive_in_order_and_repeats_are_dropped_also_by_the_next_run(
    receiver, tmp_path
):
    first, notes = deliverer(receiver, tmp_path)
    names = ["a", "b", "a", "c"]
    totals = deliver_all(first, *(record(name, n) for n, name in enumerate(names)))
    assert receiver.ids == ["a", "b", "c"]
    assert (totals.delivered, totals.repeats) == (3, 1)
    notes.close()
    second, _ = deliverer(receiver, tmp_path)
    deliver_all(second, record("b", 9), record("d", 10))
    assert receiver.ids == ["a", "b", "c", "d"]
    assert receiver.taken[0][1] == {"id": "a", "text": "hello"}


def test_an_id_is_a_repeat_only_in_its_own_topic(receiver, tmp_path):
    one, _ = deliverer(receiver, tmp_path)
    totals = deliver_all(one, record("a", 0), record("a", 0, topic="others"), record("a", 1, topic="others"))
    assert (totals.delivered, totals.repeats) == (2, 1)


def test_the_notes_of_an_older_version_count_for_the_topic_and_are_kept(receiver, tmp_path):
    older = sqlite3.connect(tmp_path / "notes.sqlite", isolation_level=None)
    older.execute("CREATE TABLE delivered (id TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID")
    older.execute("INSERT INTO delivered VALUES ('f\u00fcr', ?)", (time.time(),))
    older.execute(
        "CREATE TABLE set_aside (at REAL, topic TEXT, partition INTEGER, offset INTEGER, "  # codespell:ignore
        "value BLOB, reason TEXT)"
    )
    older.execute("INSERT INTO set_aside VALUES (1, 'messages', 2, 3, 'x', 'no id')")  # codespell:ignore
    older.close()
    one, notes = deliverer(receiver, tmp_path)
    totals = deliver_all(one, record("f\u00fcr", 0), record("b", 1))
    assert (receiver.ids, totals.repeats) == (["b"], 1)
    assert [(each.partition, each.offset, each.reason) for each in notes.refusals()] == [(2, 3, "no id")]


def test_any_text_is_an_id_and_no_record_ends_the_run(receiver, tmp_path):
    hostile = [b'{"id": "\\ud800\\r\\n"}', b"[" * 100_000, b'{"id": 5}', b"\xff", b"", b'{"id": ""}']
    one, notes = deliverer(receiver, tmp_path)
    records = [record(None, n, value=value) for n, value in enumerate(hostile)]
    totals = deliver_all(one, *records, record(None, 9, value=hostile[0]))
    assert (totals.delivered, totals.repeats, totals.refused) == (1, 1, 5)
    assert receiver.ids == [r"\ud800\r\n"]
    assert [each.value for each in notes.refusals()] == hostile[1:]


def test_a_message_may_have_a_number_of_any_number_of_digits(receiver, tmp_path):
    one, _ = deliverer(receiver, tmp_path)
    value = b'{"id": "a", "n": %s, "m": 1e%s}' % (b"9" * 5_000, b"9" * 5_000)
    assert deliver_all(one, record(None, 0, value=value)).delivered == 1


def test_an_id_that_is_being_sent_from_another_partition_is_waited_for(receiver, tmp_path):
    receiver.answers["a"] = [503] * 5
    one, _ = deliverer(receiver, tmp_path)
    messages = Polled(*(record("a", 0, partition) for partition in range(4)), record("b", 1, 1))

    async def until():
        return not messages.records

    totals = asyncio.run(one.run(messages, until=until))
    assert sorted(receiver.ids) == ["a", "b"]
    assert (totals.delivered, totals.repeats) == (2, 3)
    assert messages.committed == {TopicPartition("messages", n): 2 if n == 1 else 1 for n in range(4)}


def test_a_partition_that_waits_for_an_id_of_another_one_can_be_revoked(receiver, tmp_path):
    receiver.answers["a"] = [503] * 10_000
    one, _ = deliverer(receiver, tmp_path)

    async def work():
        messages = Polled(record("a", 0, 0), record("a", 0, 1))
        running = asyncio.create_task(one.run(messages))
        await becomes(lambda: len(receiver.arrived) >= 2, "a was sent twice")
        await one.on_partitions_revoked([TopicPartition("messages", 1)])
        assert messages.committed == {}
        receiver.answers.clear()
        await becomes(lambda: messages.committed == {TopicPartition("messages", 0): 1}, "a is delivered")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(work())
    assert receiver.ids == ["a"]


def test_what_fails_is_sent_again_before_what_lies_behind_it(receiver, tmp_path):
    receiver.answers["a"] = [500, None, 429, 503]
    problems: list[str] = []
    one, _ = deliverer(receiver, tmp_path, problems)
    deliver_all(one, record("a", 0), record("b", 1))
    assert receiver.ids == ["a", "b"]
    assert len(problems) == 4


def test_what_is_refused_for_good_is_recorded_with_the_response_and_the_rest_goes_on(receiver, tmp_path):
    text = b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nno one\r\n0\r\n\r\n"
    receiver.answers["a"] = [[b"HTTP/1.1 100 Continue\r\n\r\n", text]]
    one, notes = deliverer(receiver, tmp_path)
    totals = deliver_all(one, record("a", 0), record(None, 1, value=b"no json"), record("b", 2))
    assert receiver.ids == ["b"]
    refused, unreadable = notes.refusals()
    assert (refused.offset, refused.response, refused.key) == (0, "no one", b"key")
    assert "message a with status 404" in refused.reason
    assert (unreadable.offset, unreadable.value) == (1, b"no json")
    assert totals.refused == 2


@pytest.mark.parametrize("more", [{"permanent": frozenset({500})}, {"attempts": 3}], ids=["list", "attempts"])
def test_a_message_that_fails_for_ever_does_not_block_its_partition_if_a_setting_says_so(
    receiver, tmp_path, more
):
    receiver.answers["a"] = [500] * 100
    one, notes = deliverer(receiver, tmp_path, **more)
    deliver_all(one, record("a", 0), record("b", 1))
    assert receiver.ids == ["b"]
    assert "status 500" in notes.refusals()[0].reason
    assert len(receiver.answers["a"]) == 100 - more.get("attempts", 1)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("401 Unauthorized", "status 401, so it accepts none from this sender"),
        ("403 Forbidden", "status 403"),
        ("301 Moved\r\nLocation: https://example.org/new", "its address is now https://example.org/new"),
    ],
)
def test_the_delivery_ends_with_a_message_if_the_webhook_accepts_nothing(receiver, tmp_path, head, said):
    receiver.answers["a"] = [[f"HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n".encode()]]
    one, notes = deliverer(receiver, tmp_path)
    with pytest.raises(PipelineError, match=said):
        deliver_all(one, record("a", 0))
    assert notes.refusals() == []
    deliver_all(one, record("a", 0))
    assert receiver.ids == ["a"]


def test_an_invalid_certificate_ends_the_delivery(tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority(tmp_path / "authority").issue("hook", "/CN=hook"))

    async def work():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        notes = DeliveryNotes(tmp_path / "notes.sqlite", "messages")
        async with server:
            with pytest.raises(PipelineError, match="the webhook's certificate is not valid: "):
                await Deliverer(Webhook(f"https://127.0.0.1:{port}/"), notes).deliver(record("a", 0))

    asyncio.run(work())


def test_retry_after_is_waited_for(receiver, tmp_path):
    now, now_s = datetime.now(UTC), time.monotonic()
    date = (now + timedelta(seconds=3)).replace(microsecond=0)
    later = format_datetime(date, usegmt=True)
    no_date = "Mon, 99999999999999999999 Jan 2024 00:00:00 GMT"
    for name, value in (("a", "1"), ("b", later), ("c", "soon"), ("d", no_date)):
        head = f"HTTP/1.1 429 Slow down\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n"
        receiver.answers[name] = [[head.encode()]]
    one, _ = deliverer(receiver, tmp_path)
    deliver_all(one, *(record(name, n) for n, name in enumerate("abcd")))
    times = defaultdict(list)
    for name, at in receiver.arrived:
        times[name].append(at)
    assert times["a"][1] - times["a"][0] >= 1.0
    assert times["b"][1] >= now_s + (date - now).total_seconds() - 0.05
    assert len(times["c"]) == len(times["d"]) == 2


def test_a_response_that_comes_byte_by_byte_is_given_up_after_the_time_out(receiver, tmp_path, monkeypatch):
    monkeypatch.setattr(webhook_delivery, "TIMEOUT_S", 0.5)
    receiver.answers["a"] = [[b"H", b"T", b"T", b"P", *[b"x"] * 10_000]]
    problems: list[str] = []
    one, _ = deliverer(receiver, tmp_path, problems)
    deliver_all(one, record("a", 0))
    assert receiver.ids == ["a"]
    assert problems == ["no response from the webhook within 0.5 s"]


def test_a_status_is_known_before_the_whole_body_has_arrived(receiver, tmp_path, monkeypatch):
    monkeypatch.setattr(webhook_delivery, "TEXT_WAIT_S", 0.5)
    slow = [b" "] * 10_000
    receiver.answers["a"] = [[b"HTTP/1.1 404 No\r\nContent-Length: 10004\r\n\r\nsome", *slow]]
    receiver.answers["b"] = [[b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n", *slow]]
    one, notes = deliverer(receiver, tmp_path)
    assert deliver_all(one, record("a", 0), record("b", 1)).delivered == 1
    assert notes.refusals()[0].response.startswith("some")


class Polled:
    """A consumer of given records that never waits; counts polls, and has what was committed."""

    def __init__(self, *records):
        self.records = list(records)
        self.committed = {}
        self.paused = set()
        self.polls = 0

    async def poll(self, max_records=None, timeout_ms=0):
        self.polls += 1
        await asyncio.sleep(0.005)
        open_now = [one for one in self.records if partition_of(one) not in self.paused]
        self.records = [one for one in self.records if one not in open_now]
        return open_now

    async def commit(self, offsets):
        self.committed |= offsets

    def pause(self, *partitions):
        self.paused.update(partitions)

    def resume(self, *partitions):
        self.paused.difference_update(partitions)


def partition_of(one):
    return TopicPartition(one.topic, one.partition)


def test_a_failing_message_blocks_no_other_partition_and_the_consumer_is_polled_meanwhile(receiver, tmp_path):
    receiver.answers["a"] = [500] * 30
    messages = Polled(record("a", 0), record("b", 0, 1))
    one, _ = deliverer(receiver, tmp_path)

    async def until():
        return not messages.records

    async def work():
        running = asyncio.create_task(one.run(messages, until=until))
        await becomes(lambda: "b" in receiver.ids, "b is delivered")
        messages.records.append(record("c", 1, 1))
        await running

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webhook_delivery, "PAUSE_MAX_S", 0.02)
        asyncio.run(work())
    assert receiver.ids == ["b", "c", "a"]
    assert messages.polls > 30
    assert messages.committed == {TopicPartition("messages", 0): 1, TopicPartition("messages", 1): 2}


def test_a_webhook_that_accepts_nothing_is_said_once_for_all_partitions(receiver, tmp_path):
    receiver.always = 401
    unheard = []

    async def work():
        one, _ = deliverer(receiver, tmp_path)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        with pytest.raises(PipelineError, match="status 401"):
            await one.run(Polled(*(record(f"m{n}", 0, n) for n in range(4))))

    asyncio.run(work())
    gc.collect()
    assert unheard == []


def test_a_revoked_partition_is_left_where_its_delivery_stands(receiver, tmp_path):
    receiver.answers["b"] = [500] * 1000
    messages = Polled(record("a", 0), record("b", 1), record("c", 2))
    one, _ = deliverer(receiver, tmp_path)

    async def work():
        running = asyncio.create_task(one.run(messages))
        await becomes(lambda: len(receiver.arrived) >= 3, "b was sent twice")
        await one.on_partitions_revoked([TopicPartition("messages", 0)])
        assert messages.committed == {TopicPartition("messages", 0): 1}
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(work())
    assert receiver.ids == ["a"]


@pytest.mark.parametrize("url", ["example.org/hook", "http://h:port/", "http://", f"http://{'a' * 70}.org/"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(PipelineError, match="not the address of a webhook"):
        Webhook(url)


@pytest.mark.parametrize("headers", [{"a b": "c"}, {"a": "b\r\nc: d"}, {"a": "ü"}])
def test_a_header_that_cannot_be_sent_is_refused(headers):
    with pytest.raises(PipelineError, match="cannot be sent"):
        Webhook("http://localhost/", headers)


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


def send_and_deliver(topics, tmp_path, receiver, ids, *more):
    topic = topics.create(1)
    topics.send(topic, [Sent(0, None, json.dumps({"id": one}).encode()) for one in ids])
    given = ["--topic", topic, "--webhook", receiver.url, "--group", f"g/{topic}", "--until-idle", *more]
    given += ["--bootstrap-server", topics.bootstrap, "--home", str(tmp_path)]
    return given, CliRunner().invoke(pipeline, ["deliver", *given])


def test_refused_messages_are_no_success_and_can_be_listed(receiver, topics, tmp_path):
    receiver.answers.update(m1=[422], m2=[422])
    given, result = send_and_deliver(topics, tmp_path, receiver, ["m0", "m1", "m2"])
    assert result.exit_code == 3
    assert "1 delivered, 0 repeats dropped, 2 refused" in result.output
    assert "66.7% of the messages were refused; --max-refused is 20 %" in result.output
    listed = CliRunner().invoke(pipeline, ["deliver", *given, "--refused", "--json"])
    assert [(one["offset"], one["value"]) for one in json.loads(listed.stdout)["refused"]] == [
        (1, '{"id": "m1"}'),
        (2, '{"id": "m2"}'),
    ]


def test_messages_of_an_aborted_transaction_are_not_sent(receiver, topics, tmp_path):
    topic = topics.create(1)
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for one, end in (
        ("m0", producer.abort_transaction),
        ("m1", producer.commit_transaction),
        ("m2", producer.abort_transaction),
    ):
        producer.begin_transaction()
        producer.produce(topic, json.dumps({"id": one}))
        producer.flush(30)
        end(30)
    given = ["--topic", topic, "--webhook", receiver.url, "--group", topic, "--until-idle"]
    given += ["--bootstrap-server", topics.bootstrap, "--home", str(tmp_path)]
    assert "1 delivered" in CliRunner().invoke(pipeline, ["deliver", *given]).output
    assert receiver.ids == ["m1"]


def test_notes_that_are_damaged_are_named_with_the_remedy(receiver, topics, tmp_path):
    given, _ = send_and_deliver(topics, tmp_path, receiver, ["m0"])
    [notes] = (tmp_path / "deliver").glob("*.sqlite")
    for left in (tmp_path / "deliver").glob("*.sqlite-*"):
        left.unlink()
    notes.write_bytes(b"\0" * 8192)
    for more in ([], ["--refused"]):
        result = CliRunner().invoke(pipeline, ["deliver", *given, *more])
        assert result.exit_code == 1
        assert f"{notes}, which has what was delivered" in result.output
        assert "remove it" in result.output


def test_a_webhook_that_wants_a_login_ends_the_command_and_loses_nothing(receiver, topics, tmp_path):
    receiver.always = 401
    given, result = send_and_deliver(topics, tmp_path, receiver, ["m0", "m1"])
    assert result.exit_code == 1
    assert "Error: the webhook responded to message m0 with status 401" in result.output
    receiver.always = None
    assert "2 delivered" in CliRunner().invoke(pipeline, ["deliver", *given]).output


def test_the_next_deliverer_takes_over_from_a_killed_one_at_once(receiver, topics, tmp_path, monkeypatch):
    """The session of the killed one expires after the time that the test may take."""
    monkeypatch.setattr(pipeline_deliver_command, "SESSION_TIMEOUT_MS", "1800000")
    receiver.answers["m0"] = [500] * 1000
    topic = topics.create(1)
    topics.send(topic, [Sent(0, None, json.dumps({"id": one}).encode()) for one in ("m0", "m1")])
    given = ["--topic", topic, "--webhook", receiver.url, "--group", topic, "--until-idle"]
    given += ["--bootstrap-server", topics.bootstrap, "--home", str(tmp_path)]
    program = (
        "from nilometer.cli.pipelines import pipeline_deliver_command as command\n"
        "command.SESSION_TIMEOUT_MS = '1800000'\n"
        f"command.deliver({given!r})"
    )
    killed = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: bool(receiver.arrived), "the first deliverer has sent a message")
    finally:
        killed.kill()
        killed.wait()
    receiver.answers.clear()
    result = CliRunner().invoke(pipeline, ["deliver", *given])
    assert "2 delivered" in result.output
    again = CliRunner().invoke(pipeline, ["deliver", *given[:-1], str(tmp_path / "another")])
    assert "0 delivered" in again.output  # the second one has left the group, and so has its name


def test_a_topic_that_is_not_there_is_said_and_not_waited_for(topics, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_reader, "TOPIC_WAIT_MS", 100)
    where = ("--bootstrap-server", topics.bootstrap, "--home", str(tmp_path))
    result = CliRunner().invoke(
        pipeline, ["deliver", "--topic", "nowhere", "--webhook", "http://127.0.0.1:1/", *where]
    )
    assert result.exit_code == 1
    assert "topic nowhere does not exist" in result.output
