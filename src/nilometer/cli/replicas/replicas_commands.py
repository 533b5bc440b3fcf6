"""``nilometer replicas``: shows the state of every replica, as its own broker reports it; once or repeatedly.

Exit codes: 0 if every replica was reported by its broker, 1 if one was not (its row says why).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence

import click
from rich.live import Live

from nilometer.cli import commands
from nilometer.cli.cluster_clients import survey_of
from nilometer.cli.cluster_options import (
    connection_options,
    json_option,
    print_json,
    run_async,
    stop_on_signals,
)
from nilometer.cli.console import OutputConsole
from nilometer.cli.number_types import BROKER_ID, PARTITION
from nilometer.cli.replicas.replicas_view import document, picture
from nilometer.cli.watch_options import watch_options
from nilometer.client.replicas.replica_survey import ReplicaSurvey, Survey
from nilometer.wire.errors import ErrorCode, KafkaError


@commands.command()
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable.")
@click.option(
    "--partition",
    "partitions",
    type=PARTITION,
    multiple=True,
    help="Only this partition; repeatable.",
)
@click.option(
    "--broker",
    "broker_ids",
    type=BROKER_ID,
    multiple=True,
    help="Only replicas on this broker; repeatable.",
)
@json_option
@watch_options(
    interval_s=1.0,
    timeout_help="Seconds after which a broker that does not respond is shown as unreachable.",
)
@connection_options
def replicas(
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    broker_ids: tuple[int, ...],
    as_json: bool,
    watch: bool,
    interval: float,
    times: int | None,
    timeout: float,
    bootstrap: str,
) -> None:
    """Show every replica: log start and end offset, high watermark, what that waits for.

    Each broker describes its own replicas; the responses are not from exactly the same moment. AGE is for how
    long a follower has lacked records of the leader. REMOTE LEO is each follower's log end offset as the
    leader knows it. EPOCHS lists the leader epochs with their start offsets.
    """
    survey = survey_of(bootstrap, round(timeout * 1000))
    looks = _SurveyLoop(survey, topics or None, partitions or None, broker_ids, interval)
    if watch:
        run_async(_watch(looks, times, as_json))
        return
    found = run_async(looks.once())
    if as_json:
        print_json(document(found))
    else:
        OutputConsole().print(picture(found))
    if not found.is_complete:
        raise click.exceptions.Exit(1)


class _SurveyLoop:
    """Makes surveys of the chosen replicas, once or repeatedly."""

    def __init__(
        self,
        survey: ReplicaSurvey,
        topics: Sequence[str] | None,
        partitions: Sequence[int] | None,
        broker_ids: Sequence[int],
        interval_s: float,
    ) -> None:
        self._survey = survey
        self._topics = topics
        self._partitions = partitions
        self._broker_ids = broker_ids
        self._interval_s = interval_s

    async def once(self) -> Survey:
        """Return one survey. Raises KafkaError if no broker responds, or a chosen topic does not exist."""
        async with self._survey:
            found = await self._look()
        if found.missing_topics:
            names = ", ".join(found.missing_topics)
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"no topic {names}")
        if absent := set(self._partitions or ()).difference(one.partition for one in found.rows):
            raise click.ClickException(f"there is no partition {', '.join(map(str, sorted(absent)))}")
        if absent := set(self._broker_ids).difference(one.broker_id for one in found.brokers):
            raise click.ClickException(f"no such broker: {', '.join(map(str, sorted(absent)))}")
        return found

    async def again(self, stop: asyncio.Event) -> AsyncIterator[Survey | KafkaError]:
        """Yield surveys until ``stop`` is set; yield the error while no broker responds."""
        async with self._survey:
            while not stop.is_set():
                try:
                    yield await self._look()
                except KafkaError as error:
                    yield error
                try:
                    async with asyncio.timeout(self._interval_s):
                        await stop.wait()
                except TimeoutError:
                    continue

    async def _look(self) -> Survey:
        found = await self._survey.look(self._topics, self._partitions)
        return found.of_brokers(self._broker_ids) if self._broker_ids else found


async def _watch(looks: _SurveyLoop, times: int | None, as_json: bool) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop.set)
    left = times
    with _Screen(as_json) as screen:
        async for found in looks.again(stop):
            screen.show(found)
            if left is not None:
                left -= 1
                if left == 0:
                    stop.set()


class _Screen:
    """Prints surveys: redrawn in place on a terminal, else one below the other; as JSON, one per line."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._console = OutputConsole()
        self._live = (
            Live(console=self._console, auto_refresh=False, vertical_overflow="visible")
            if self._console.is_terminal and not as_json
            else None
        )

    def __enter__(self) -> _Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, found: Survey | KafkaError) -> None:
        if self._as_json:
            click.echo(_json_line(found))
            sys.stdout.flush()
            return
        drawn = f"No broker responds: {found.message}" if isinstance(found, KafkaError) else picture(found)
        if self._live is not None:
            self._live.update(drawn, refresh=True)
        else:
            self._console.print(drawn)


def _json_line(found: Survey | KafkaError) -> str:
    return json.dumps({"error": str(found)} if isinstance(found, KafkaError) else document(found))
