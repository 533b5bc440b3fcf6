"""Forms that change the cluster. Each change is shown before it is made: a form is posted twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from nilometer.client.admin.admin import BROKER_DEFAULT, AlterOperation, ConfigChange, NewTopic, ResourceType
from nilometer.client.admin.group_admin import GroupAdmin, PlannedReset, ResetTo, partitions_of, plan_reset
from nilometer.console.reading.connection import ClusterConnection
from nilometer.console.serving import Changes
from nilometer.console.web.guard import (
    INT32_MAX,
    INT64_MAX,
    BadEntry,
    BadForm,
    form_entries,
    number_in,
    time_in,
)
from nilometer.console.web.live_page import UNAVAILABLE, Rendering
from nilometer.wire.errors import ErrorCode, KafkaError

# Changes of the cluster that a user makes in the console. Each says what it would do, before it does it.


class Plan(msgspec.Struct, frozen=True):
    """What a change will do."""

    summary: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


class Change(Protocol):
    async def plan(self, connection: ClusterConnection) -> Plan:
        """Change nothing. Raises KafkaError."""
        ...

    async def apply(self, connection: ClusterConnection) -> None:
        """Raises KafkaError."""
        ...


class CreateTopic(msgspec.Struct, frozen=True):
    topic: NewTopic

    async def plan(self, connection: ClusterConnection) -> Plan:
        await self._send(connection, validate_only=True)
        settings = tuple(sorted(self.topic.configs.items()))
        counts = (("partitions", self.topic.partitions), ("replicas", self.topic.replication_factor))
        sizes = ", ".join(
            f"{name}: {'the default' if count == BROKER_DEFAULT else f'{count:,}'}" for name, count in counts
        )
        return Plan(f"The topic {self.topic.name} is created ({sizes}).", ("Setting", "Value"), settings)

    async def apply(self, connection: ClusterConnection) -> None:
        await self._send(connection, validate_only=False)

    async def _send(self, connection: ClusterConnection, *, validate_only: bool) -> None:
        admin = await connection.admin()
        outcomes = await admin.create_topics([self.topic], validate_only=validate_only)
        _raise(outcomes.get(self.topic.name))


class DeleteTopic(msgspec.Struct, frozen=True):
    name: str

    async def plan(self, connection: ClusterConnection) -> Plan:
        async with connection.survey() as survey:
            found = await survey.look([self.name])
        if self.name in found.missing_topics:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {self.name} does not exist")
        ends: dict[int, tuple[int, int] | None] = {}
        for row in found.rows:
            known = ends.setdefault(row.partition, None)
            if row.state is not None:
                state = row.state.log_end_offset, row.state.log_start_offset
                ends[row.partition] = state if known is None else max(known, state)
        rows = tuple(
            (str(part), "not known", "not known")
            if one is None
            else (str(part), f"{one[1]:,}", f"{one[0]:,}")
            for part, one in sorted(ends.items())
        )
        records = sum(one[0] - one[1] for one in ends.values() if one is not None)
        unknown = sum(one is None for one in ends.values())
        more = f", and those of {unknown:,} partitions that no broker describes" if unknown else ""
        return Plan(
            f"The topic {self.name} is deleted, with its settings and all of its records, up to {records:,}"
            f"{more}. They cannot be restored.",
            ("Partition", "First offset", "End offset"),
            rows,
        )

    async def apply(self, connection: ClusterConnection) -> None:
        admin = await connection.admin()
        _raise((await admin.delete_topics([self.name])).get(self.name))


class ChangeSetting(msgspec.Struct, frozen=True):
    topic: str
    key: str
    value: str | None
    """None: the key's default."""

    async def plan(self, connection: ClusterConnection) -> Plan:
        admin = await connection.admin()
        entries = await admin.describe_configs(ResourceType.TOPIC, self.topic)
        entry = entries.get(self.key)
        if entry is None:
            raise KafkaError(ErrorCode.invalid_config, f"topics have no setting {self.key}")
        after = "its default" if self.value is None else self.value
        row = (self.key, "" if entry.value is None else entry.value, after)
        return Plan(f"A setting of the topic {self.topic} changes.", ("Setting", "Now", "Then"), (row,))

    async def apply(self, connection: ClusterConnection) -> None:
        admin = await connection.admin()
        operation = AlterOperation.DELETE if self.value is None else AlterOperation.SET
        change = ConfigChange(self.key, self.value, operation)
        await admin.incremental_alter_configs(ResourceType.TOPIC, self.topic, [change])


class ResetOffsets(msgspec.Struct, frozen=True):
    group_id: str
    topic: str
    to: ResetTo

    async def plan(self, connection: ClusterConnection) -> Plan:
        found = await self._planned(connection)
        return Plan(
            f"Group {self.group_id} goes on from these offsets. It must have no members.",
            ("Partition", "Now", "Then", ""),
            tuple(
                (
                    str(one.partition),
                    "–" if one.before is None else f"{one.before:,}",
                    f"{one.after:,}",
                    one.note,
                )
                for one in found
            ),
        )

    async def apply(self, connection: ClusterConnection) -> None:
        offsets = {one.partition: one.after for one in await self._planned(connection)}
        admin = await connection.admin()
        await GroupAdmin(admin.client, admin.timeout_ms).set_positions(self.group_id, offsets)

    async def _planned(self, connection: ClusterConnection) -> list[PlannedReset]:
        admin = await connection.admin()
        partitions = await partitions_of(admin.client, self.topic, (), admin.timeout_ms)
        committed = await GroupAdmin(admin.client, admin.timeout_ms).positions(self.group_id)
        return await plan_reset(admin.client, partitions, committed, self.to, admin.timeout_ms)


def _raise(error: KafkaError | None) -> None:
    if error is not None:
        raise error


logger = logging.getLogger("nilometer.console")

BODY_BYTES_MAX = 64 * 1024
NOT_ALLOWED = "This console does not change the cluster: start it with --changes all."
CONFIRMED = "confirmed"
EARLIEST, LATEST, OFFSET, TIME, SHIFT = "earliest", "latest", "offset", "time", "shift"
RESETS = (EARLIEST, LATEST, OFFSET, TIME, SHIFT)

Given = Mapping[str, str]


class Form(msgspec.Struct, frozen=True):
    """A form at an address: its page, what it changes, and where its user goes on."""

    path: str
    template: str
    change: Callable[[Given], Change]
    """Raises BadEntry."""
    next: Callable[[Given], str]


class ChangePages:
    """The entries of a form are those of its page's address, too: a topic, a group."""

    def __init__(self, connection: ClusterConnection, rendering: Rendering, changes: Changes) -> None:
        self._connection = connection
        self._rendering = rendering
        self._changes = changes

    @property
    def routes(self) -> list[Route]:
        return [Route(form.path, partial(self._respond, form), methods=["GET", "POST"]) for form in FORMS]

    async def _respond(self, form: Form, request: Request) -> Response:
        if self._changes is not Changes.ALL:
            return PlainTextResponse(f"{NOT_ALLOWED}\n", 403)
        given: dict[str, str] = dict(request.query_params)
        if request.method == "POST":
            try:
                given |= await form_entries(request, BODY_BYTES_MAX)
            except BadForm as error:
                return PlainTextResponse(f"{error}\n", error.status)
        given |= request.path_params
        if request.method != "POST":
            return self._page(form, given, None, 200)
        try:
            change = form.change(given)
            if given.get(CONFIRMED) == "1":
                await change.apply(self._connection)
                logger.info("Changed: %r", change)
                return RedirectResponse(form.next(given), 303)
            plan = await change.plan(self._connection)
        except BadEntry as error:
            return self._page(form, given, str(error), 400)
        except KafkaError as error:
            is_sent = given.get(CONFIRMED) == "1"  # a broker may have made what it did not confirm
            what = (
                "The change was not confirmed; look before you try again"
                if is_sent
                else "Nothing was changed"
            )
            return self._page(form, given, f"{what}: {error.message or error.name}", UNAVAILABLE)
        html = self._rendering.render(
            "change_plan.html", plan=plan, given=given, path=_address(form, given), error=None
        )
        return HTMLResponse(html)

    def _page(self, form: Form, given: Given, error: str | None, status: int) -> Response:
        html = self._rendering.render(
            form.template, given=given, resets=RESETS, path=_address(form, given), error=error
        )
        return HTMLResponse(html, status)


def _address(form: Form, given: Given) -> str:
    return form.path.replace("{topic}", quote(given.get("topic", ""), safe=""))


def _topic_page(given: Given) -> str:
    return f"/topics/{quote(given['topic'], safe='')}"


def _new_topic(given: Given) -> Change:
    name = given.get("name", "").strip()
    if not name:
        raise BadEntry("The topic needs a name.")
    settings: dict[str, str] = {}
    for line in given.get("settings", "").splitlines():
        if not line.strip():
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise BadEntry(f"A setting is a line of the form key=value, not {line!r}.")
        if key.strip() in settings:
            raise BadEntry(f"The setting {key.strip()} is given twice.")
        settings[key.strip()] = value.strip()
    return CreateTopic(
        NewTopic(
            name,
            _number_or_default(given.get("partitions", ""), "The number of partitions"),
            _number_or_default(given.get("replicas", ""), "The number of replicas"),
            settings,
        )
    )


def _number_or_default(text: str, what: str) -> int:
    return number_in(text.strip(), what, INT32_MAX) if text.strip() else BROKER_DEFAULT


def _deleted_topic(given: Given) -> Change:
    if given.get("name", "") != given["topic"]:
        raise BadEntry(f"Enter the topic's name, {given['topic']}, to delete it.")
    return DeleteTopic(given["topic"])


def _changed_setting(given: Given) -> Change:
    key = given.get("key", "").strip()
    if not key:
        raise BadEntry("Name the setting, such as retention.ms.")
    return ChangeSetting(given["topic"], key, None if given.get("default") == "1" else given.get("value", ""))


def _reset(given: Given) -> Change:
    group_id, topic, to = given.get("id", ""), given.get("topic", "").strip(), given.get("to", "")
    if not topic:
        raise BadEntry("Name the topic whose offsets are reset.")
    at = given.get("at", "").strip()
    if to == EARLIEST:
        target = ResetTo(earliest=True)
    elif to == LATEST:
        target = ResetTo(latest=True)
    elif to == OFFSET:
        target = ResetTo(offset=number_in(at, "The offset", INT64_MAX))
    elif to == TIME:
        target = ResetTo(timestamp_ms=time_in(at))
    elif to == SHIFT:
        count = number_in(at[1:] if at[:1] in ("+", "-") else at, "The number of records", INT64_MAX)
        target = ResetTo(shift_by=-count if at.startswith("-") else count)
    else:
        raise BadEntry(f"Reset to one of {', '.join(RESETS)}.")
    return ResetOffsets(group_id, topic, target)


FORMS = (
    Form(
        "/new-topic",
        "new_topic.html",
        _new_topic,
        lambda given: f"/topics/{quote(given['name'].strip(), safe='')}",
    ),
    Form("/topics/{topic}/delete", "delete_topic.html", _deleted_topic, lambda _: "/topics"),
    Form(
        "/topics/{topic}/change",
        "change_setting.html",
        _changed_setting,
        lambda given: f"{_topic_page(given)}/settings",
    ),
    Form(
        "/group/reset",
        "reset_offsets.html",
        _reset,
        lambda given: f"/group?{urlencode({'id': given.get('id', '')})}",
    ),
)
