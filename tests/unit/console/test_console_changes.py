"""Changes in the console: at which level they are allowed, and which entries are refused."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from nilometer.client.admin.admin import NewTopic
from nilometer.client.admin.group_admin import ResetTo
from nilometer.console.reading.cluster_access import Feeds
from nilometer.console.serving import Changes
from nilometer.console.web.application import application
from nilometer.console.web.change_pages import (
    FORMS,
    Change,
    ChangeSetting,
    CreateTopic,
    DeleteTopic,
    ResetOffsets,
)
from nilometer.console.web.guard import BadEntry, allowed_hosts
from nilometer.runtime.runtime import SystemClock
from support.console.asgi_client import Answer, ask

OWN = ("origin", "http://127.0.0.1:8080")
PATHS = ("/new-topic", "/topics/t/delete", "/topics/t/change", "/group/reset?id=g")


class NoCluster:
    """Is never asked: each entry is refused before."""

    async def admin(self) -> Any:
        raise AssertionError("the cluster is asked")


def send(target: str, changes: Changes, **more: Any) -> Answer:
    feeds = Feeds(SystemClock(), interval_s=60, linger_s=0)
    nothing: Any = None
    cluster: Any = NoCluster()
    hosts = allowed_hosts("127.0.0.1", 8080)
    return ask(application(nothing, nothing, feeds, cluster, hosts, changes=changes), target, **more)


def changed_by(path: str, **given: str) -> Change:
    (form,) = (form for form in FORMS if form.path == path)
    return form.change(given)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("changes", [Changes.NONE, Changes.RECORDS])
def test_the_cluster_is_changed_at_one_level_only(path: str, changes: Changes) -> None:
    form = urlencode({"name": "t", "confirmed": "1"}).encode()
    for answer in (send(path, changes), send(path, changes, method="POST", headers=[OWN], body=form)):
        assert (answer.status, "start it with --changes all" in answer.text) == (403, True)
    assert send(path, Changes.ALL).status == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_form_of_a_foreign_page_is_refused(path: str) -> None:
    refused = send(path, Changes.ALL, method="POST", body=b"name=t&confirmed=1")
    assert (refused.status, "needs the header Origin" in refused.text) == (403, True)


def test_a_bad_entry_is_named_and_the_others_are_kept() -> None:
    form = urlencode({"name": "clicks", "partitions": "many"}).encode()
    answer = send("/new-topic", Changes.ALL, method="POST", headers=[OWN], body=form)
    assert answer.status == 400
    assert "The number of partitions must be a whole number" in answer.text
    assert 'name="name" value="clicks"' in answer.text


@pytest.mark.parametrize(
    ("path", "given", "error"),
    [
        ("/new-topic", {}, "needs a name"),
        ("/new-topic", {"name": "t", "settings": "retention.ms"}, "key=value"),
        ("/new-topic", {"name": "t", "settings": "a=1\na=2"}, "a is given twice"),
        ("/topics/{topic}/delete", {"topic": "t", "name": "T"}, "Enter the topic's name, t"),
        ("/topics/{topic}/change", {"topic": "t", "value": "1"}, "Name the setting"),
        ("/group/reset", {"id": "g", "to": "earliest"}, "Name the topic"),
        ("/group/reset", {"id": "g", "topic": "t", "to": "start"}, "Reset to one of"),
        ("/group/reset", {"id": "g", "topic": "t", "to": "offset", "at": "-1"}, "The offset must be"),
        ("/group/reset", {"id": "g", "topic": "t", "to": "shift", "at": "--5"}, "The number of records"),
        ("/group/reset", {"id": "g", "topic": "t", "to": "time", "at": "soon"}, "The time must be"),
    ],
)
def test_an_entry_that_cannot_be_used_says_why(path: str, given: dict[str, str], error: str) -> None:
    with pytest.raises(BadEntry, match=error):
        changed_by(path, **given)


def test_entries_make_a_change() -> None:
    topic = NewTopic("t", 3, -1, {"cleanup.policy": "compact", "retention.ms": "1"})
    settings = "cleanup.policy=compact\r\n\r\n retention.ms = 1"
    assert changed_by("/new-topic", name=" t ", partitions="3", settings=settings) == CreateTopic(topic)
    assert changed_by("/topics/{topic}/delete", topic="t", name="t") == DeleteTopic("t")
    set_to = {"topic": "t", "key": "retention.ms", "value": "5"}
    assert changed_by("/topics/{topic}/change", **set_to) == ChangeSetting("t", "retention.ms", "5")
    assert changed_by("/topics/{topic}/change", **set_to, default="1") == ChangeSetting(
        "t", "retention.ms", None
    )
    for to, at, target in (
        ("earliest", "", ResetTo(earliest=True)),
        ("latest", "", ResetTo(latest=True)),
        ("offset", "7", ResetTo(offset=7)),
        ("shift", "-5", ResetTo(shift_by=-5)),
        ("shift", "+5", ResetTo(shift_by=5)),
        ("time", "2026-01-31 12:00", ResetTo(timestamp_ms=1_769_860_800_000)),
    ):
        assert changed_by("/group/reset", id="g", topic="t", to=to, at=at) == ResetOffsets("g", "t", target)
