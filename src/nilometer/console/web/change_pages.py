"""Forms that change the cluster. Each change is shown before it is made: a form is posted twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from nilometer.client.admin.admin import BROKER_DEFAULT, NewTopic
from nilometer.client.admin.group_admin import ResetTo
from nilometer.console.reading.cluster_changes import (
    Change,
    ChangeSetting,
    CreateTopic,
    DeleteTopic,
    ResetOffsets,
)
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
from nilometer.wire.errors import KafkaError

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
