"""A task of the exactly-once sink that fails before, in and behind its commit, and runs beside itself."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from nilometer.client.consumer.consumer import Consumer
from nilometer.pipeline.errors import SinkError
from nilometer.pipeline.sink.cluster_writer import ClusterWriter, Outgoing
from nilometer.pipeline.sink.spark_sink import TaskTransaction, TransactionalWriter
from nilometer.runtime import Runtime


class Task:
    """One task of a writer, in as many attempts as a test wants."""

    def __init__(self, topics, runner):
        self.topics = topics
        self.runner = runner
        self.topic = topics.create(2)
        self.id = f"sink/{uuid.uuid4().hex}/0"
        self.settings = {"bootstrap.servers": topics.bootstrap, "linger.ms": "1", "retry.backoff.ms": "20"}

    def rows(self, *values):
        return [Outgoing(self.topic, n % 2, None, value.encode(), ()) for n, value in enumerate(values)]

    def attempt(self, batch, chunks):
        writer = TransactionalWriter(self.runner, self.settings, TaskTransaction(self.id, batch))
        return writer.write(chunks)

    def committed(self):
        """The values that a reader of committed records sees."""

        async def read():
            config = {**self.topics_config(), "isolation.level": "read_committed"}
            values = []
            async with asyncio.timeout(60), Consumer(Runtime.system(), config) as consumer:
                partitions = await consumer.partitions_for(self.topic)
                ends = await consumer.end_offsets(partitions)
                consumer.assign(partitions)
                while any([await consumer.position(one) < end for one, end in ends.items()]):
                    values += [record.value.decode() for record in await consumer.poll(timeout_ms=50)]
            return sorted(values)

        return asyncio.run(read())

    def topics_config(self):
        return {"bootstrap.servers": self.topics.bootstrap, "auto.offset.reset": "earliest"}


class Broken(Exception):
    pass


@pytest.fixture
def task(topics):
    runner = ClusterWriter({"bootstrap.servers": topics.bootstrap}.items())
    yield Task(topics, runner)
    runner.close()


def failing(*chunks):
    yield from chunks
    raise Broken


def test_an_attempt_that_fails_before_its_commit_leaves_nothing_and_the_next_one_writes_all(task):
    with pytest.raises(Broken):
        task.attempt(0, failing(task.rows("a", "b"), task.rows("c")))
    assert task.committed() == []
    assert task.attempt(0, [task.rows("a", "b"), task.rows("c")]) == 3
    assert task.committed() == ["a", "b", "c"]


def test_an_attempt_behind_a_commit_writes_nothing_again(task):
    for _ in range(3):
        assert task.attempt(0, [task.rows("a", "b"), [], task.rows("c")]) == 3
    assert task.committed() == ["a", "b", "c"]
    assert task.attempt(1, [task.rows("d")]) == 1
    assert task.attempt(0, [task.rows("a", "b", "c")]) == 3, "an older batch is in there too"
    assert task.committed() == ["a", "b", "c", "d"]


def test_a_commit_whose_answer_is_lost_is_found_by_the_next_attempt(task, monkeypatch):
    commit = TransactionalWriter._commit

    async def commit_and_die(self, *arguments):
        await commit(self, *arguments)
        raise Broken

    with monkeypatch.context() as patch:
        patch.setattr(TransactionalWriter, "_commit", commit_and_die)
        with pytest.raises(Broken):
            task.attempt(0, [task.rows("a", "b")])
    assert task.attempt(0, [task.rows("a", "b")]) == 2
    assert task.committed() == ["a", "b"]


def test_of_two_attempts_side_by_side_the_older_one_is_fenced(task):
    def overtaken():
        yield task.rows("a")
        assert task.attempt(0, [task.rows("a", "b")]) == 2
        yield task.rows("b")

    with pytest.raises(SinkError, match=task.id):
        task.attempt(0, overtaken())
    assert task.committed() == ["a", "b"]


def test_a_batch_that_was_cut_into_tasks_in_another_way_is_refused(task):
    task.attempt(4, [task.rows("a", "b")])
    with pytest.raises(SinkError, match=r"committed 2 rows of batch 4 and has 1 rows now"):
        task.attempt(4, [task.rows("a")])
    assert task.committed() == ["a", "b"]


def test_a_task_without_rows_does_nothing(task):
    assert task.attempt(0, []) == 0
    assert task.attempt(0, [[]]) == 0
    assert task.committed() == []
