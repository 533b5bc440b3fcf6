"""``nilometer queue``: creates queues, puts jobs, does them by a command, and looks after the dead ones."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import (
    connection_options,
    given_client_config,
    json_option,
    parse_pairs,
    print_json,
    print_table,
    run_async,
    stop_on_signals,
)
from nilometer.cli.commands import PARTITIONS_COUNT, Seconds
from nilometer.client.ingest.line_splitter import LINE_BYTES_MAX
from nilometer.client.producer.batch import Delivery
from nilometer.kafka.blocking import connect
from nilometer.kafka.connection import Kafka
from nilometer.kafka.queue import DRAIN_S, TIME_LIMIT_S, DeadLetter, Queue
from nilometer.kafka.queue_jobs import Backoff, Job
from nilometer.kafka.queue_settings import DEFAULT_MAX_DELIVERIES

T = TypeVar("T")

UNACKNOWLEDGED_MAX = 10_000
"""So many jobs of `queue put` are on their way at most."""
TERMINATION_S = 5.0
"""How long a command has between SIGTERM and SIGKILL."""
VARIABLE = "NILOMETER_JOB_"
"""What the names of the environment variables of a job's command begin with."""

name_argument = click.argument("name", metavar="QUEUE")


def run_work(bootstrap: str, work: Callable[[Kafka], Awaitable[T]]) -> T:
    async def main() -> T:
        settings = dict(given_client_config())
        client_id = settings.pop("client.id", "nilometer")
        async with connect(bootstrap, client_id=client_id, settings=settings) as kafka:
            return await work(kafka)

    return run_async(main())


def queue_of(kafka: Kafka, name: str) -> Queue[bytes]:
    """Return a queue whose jobs are bytes: what a job is, its command knows."""
    return kafka.queue(name, value=bytes)


@commands.group()
def queue() -> None:
    """Create queues, put and do jobs, list dead ones and put them again."""


@queue.command()
@connection_options
@name_argument
@click.option(
    "--max-deliveries",
    type=click.IntRange(1, 100),
    default=DEFAULT_MAX_DELIVERIES,
    show_default=True,
    help="How often a job is delivered before it is buried.",
)
@click.option(
    "--lock",
    type=Seconds(1.0),
    default=30.0,
    show_default=True,
    help="Seconds after which a job of a worker that is silent is delivered to another one.",
)
@click.option(
    "--retry-after",
    type=Seconds(1.0),
    multiple=True,
    help="Seconds that a job waits in a retry topic once it was delivered that often, before it is put again "
    "for as many deliveries; repeatable, the shortest first.",
)
@click.option("--partitions", type=PARTITIONS_COUNT, help="Default: the brokers'.")
@click.option("--replication-factor", type=click.IntRange(1, 32767), help="Default: the brokers'.")
@click.option(
    "--config", "configs", multiple=True, metavar="KEY=VALUE", help="A setting of the topic; repeatable."
)
@json_option
def create(
    bootstrap: str,
    name: str,
    max_deliveries: int,
    lock: float,
    retry_after: Sequence[float],
    partitions: int | None,
    replication_factor: int | None,
    configs: Sequence[str],
    as_json: bool,
) -> None:
    """Create a queue: its topic, its dead-letter and retry topics, and the settings of its workers.

    A queue that exists with these settings is left as it is; one with others is an error.
    """
    given = parse_pairs(configs, "--config")

    async def work(kafka: Kafka) -> None:
        await kafka.admin.create_queue(
            name,
            max_deliveries=max_deliveries,
            lock=lock,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=given,
            retry_after=retry_after,
        )

    run_work(bootstrap, work)
    if as_json:
        print_json(
            {
                "queue": name,
                "max_deliveries": max_deliveries,
                "lock_ms": round(lock * 1000),
                "retry_after_s": list(retry_after),
            }
        )
        return
    pauses = "".join(f", again after {pause_s:g} s" for pause_s in retry_after)
    click.echo(f"Queue {name} is there: at most {max_deliveries} deliveries{pauses}, locks of {lock:g} s.")


@queue.command()
@connection_options
@name_argument
@click.argument("jobs", nargs=-1, metavar="[JOB]…")
@click.option("--key", help="The key of each job: those with one key are in one partition.")
@json_option
def put(bootstrap: str, name: str, jobs: Sequence[str], key: str | None, as_json: bool) -> None:
    """Put jobs: the arguments, or the lines of standard input, as they are.

    Workers in Python read them as JSON, unless they are told otherwise. The exit code is 0 only if each job
    that was read is acknowledged.
    """

    async def work(kafka: Kafka) -> int:
        await kafka.admin.topic(name)
        unacknowledged: list[Delivery] = []
        count = 0

        async def send(job: bytes) -> None:
            nonlocal count
            unacknowledged.append(await kafka.enqueue(name, job, key=key))
            count += 1
            if len(unacknowledged) >= UNACKNOWLEDGED_MAX:
                await _acknowledged(unacknowledged)

        for job in jobs:
            await send(job.encode("utf-8", "surrogateescape"))
        while not jobs and (line := await _next_line()) is not None:
            await send(line)
        await _acknowledged(unacknowledged)
        return count

    count = run_work(bootstrap, work)
    if as_json:
        print_json({"queue": name, "put": count})
    else:
        click.echo(f"Put {count} job{'' if count == 1 else 's'} into {name}.", err=True)


async def _acknowledged(deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        await delivery
    deliveries.clear()


async def _next_line() -> bytes | None:
    """Return the next line of standard input without its end; None at the end. Raises ClickException."""
    line = await asyncio.to_thread(sys.stdin.buffer.readline, LINE_BYTES_MAX + 2)
    if not line:
        return None
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(text) > LINE_BYTES_MAX:
        raise click.ClickException(f"a job has at most {LINE_BYTES_MAX:,} bytes: a line is longer")
    return text


@queue.command()
@connection_options
@name_argument
@click.option(
    "--exec",
    "command",
    required=True,
    metavar="CMD",
    help="Run by the shell for each job, which is its standard input. Exit code 0: the job is done.",
)
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=8, show_default=True)
@click.option(
    "--time-limit",
    type=Seconds(0.001),
    default=TIME_LIMIT_S,
    show_default=True,
    help="Seconds after which a command is ended; its job has failed.",
)
@click.option(
    "--drain",
    type=Seconds(),
    default=DRAIN_S,
    show_default=True,
    help="Seconds that running commands have after Ctrl-C or SIGTERM.",
)
@click.option(
    "--retry-pause",
    type=Seconds(),
    default=1.0,
    show_default=True,
    help="Seconds before a job that failed is delivered again; they double with each delivery, up to 60.",
)
@click.option("--until-idle", type=Seconds(0.001), help="End when no job has come for so many seconds.")
@json_option
def work(
    bootstrap: str,
    name: str,
    command: str,
    concurrency: int,
    time_limit: float,
    drain: float,
    retry_pause: float,
    until_idle: float | None,
    as_json: bool,
) -> None:
    """Do jobs by a command, until Ctrl-C or SIGTERM.

    The command has the job as its standard input, and NILOMETER_JOB_QUEUE, _PARTITION, _OFFSET, _KEY,
    _DELIVERIES and _ROUNDS in its environment. A job whose command fails is delivered again, and buried at
    last. The exit code is 0 only if the end of each job that was taken is written: accepted, released,
    postponed to a retry topic, or buried.
    """

    async def main(kafka: Kafka) -> tuple[dict[str, int], int]:
        jobs = queue_of(kafka, name)
        task = asyncio.current_task()
        assert task is not None
        signals = 0

        def on_signal() -> None:
            nonlocal signals
            signals += 1
            jobs.stop()
            if signals > 1:
                task.cancel()

        stop_on_signals(on_signal)

        async def handle(job: Job[bytes]) -> None:
            await _run(command, job)

        ended = await jobs.run(
            handle,
            concurrency=concurrency,
            time_limit=time_limit,
            drain=drain,
            pauses=Backoff(retry_pause, max(60.0, retry_pause)),
            until_idle=until_idle,
        )
        return ended._asdict(), ended.lost

    ended, lost = run_work(bootstrap, main)
    if as_json:
        print_json(ended)
    else:
        click.echo(", ".join(f"{count} {what}" for what, count in ended.items()), err=True)
    if lost:
        raise click.ClickException(
            f"the end of {lost} jobs was not written: they are delivered again, or were already"
        )


class CommandFailed(Exception):
    """The command of a job did not exit with 0."""


async def _run(command: str, job: Job[bytes]) -> None:
    """Run the command of one job. Raises CommandFailed. If this is cancelled, the command and its children
    are ended."""
    with tempfile.TemporaryFile() as file:  # not a pipe: the command need not read its input
        file.write(job.value)
        file.seek(0)
        process = await asyncio.create_subprocess_shell(
            command,
            stdin=file,
            env={**os.environ, **_variables(job)},
            start_new_session=True,  # Ctrl-C is for this process, which lets its commands finish
        )
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        await _end(process)
        raise
    if code:
        raise CommandFailed(f"exit code {code}")


def _variables(job: Job[bytes]) -> Mapping[str, str]:
    record = job.record
    found = {
        "QUEUE": record.topic,
        "PARTITION": str(record.partition),
        "OFFSET": str(record.offset),
        "DELIVERIES": str(job.deliveries),
        "ROUNDS": str(job.rounds),
    }
    if record.key is not None and b"\0" not in record.key:
        found["KEY"] = os.fsdecode(record.key)
    return {VARIABLE + name: value for name, value in found.items()}


async def _end(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(TERMINATION_S):
                await process.wait()
                return


@queue.command()
@connection_options
@name_argument
@json_option
def stats(bootstrap: str, name: str, as_json: bool) -> None:
    """Show how many jobs wait, are dead, and are postponed to retry topics.

    Those in hand wait, too; so do, for a moment, the markers of transactions.
    """
    found = run_work(bootstrap, lambda kafka: queue_of(kafka, name).stats())
    if as_json:
        print_json({"queue": name, **found._asdict()})
    else:
        print_table(("queue", *found._fields), [(name, *found)])


@queue.group()
def dead() -> None:
    """List the jobs that were buried."""


@dead.command("list")
@connection_options
@name_argument
@click.option("--limit", type=click.IntRange(1), help="Only so many, the oldest ones.")
@json_option
def list_dead(bootstrap: str, name: str, limit: int | None, as_json: bool) -> None:
    """List dead letters, the oldest first, but for those that were put again."""

    async def work(kafka: Kafka) -> list[DeadLetter]:
        return [one async for one in queue_of(kafka, name).dead(limit=limit)]

    letters = run_work(bootstrap, work)
    if as_json:
        for one in letters:
            click.echo(json.dumps(_document(one)))
        return
    rows = [
        (one.record.partition, one.record.offset, one.deliveries, one.reason, _text(one.record.value))
        for one in letters
    ]
    print_table(("partition", "offset", "deliveries", "reason", "job"), rows)


def _document(letter: DeadLetter) -> Mapping[str, Any]:
    record = letter.record
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "deliveries": letter.deliveries,
        "reason": letter.reason,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


@queue.command()
@connection_options
@name_argument
@click.option("--limit", type=click.IntRange(1), help="Only so many, the oldest ones.")
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="So many are put again in one transaction.",
)
@json_option
def redrive(bootstrap: str, name: str, limit: int | None, batch: int, as_json: bool) -> None:
    """Put dead jobs again, each once, the oldest first.

    The dead letters stay in their topic, and are not listed any more.
    """
    count = run_work(bootstrap, lambda kafka: queue_of(kafka, name).redrive(limit=limit, batch=batch))
    if as_json:
        print_json({"queue": name, "redriven": count})
    else:
        click.echo(f"Put {count} dead job{'' if count == 1 else 's'} of {name} again.")
