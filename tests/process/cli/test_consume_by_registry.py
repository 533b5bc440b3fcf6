"""`nilometer consume --registry`: keys and values as JSON, by the schemas of a registry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import nilometer as package
from nilometer import Avro, JsonSchema
from nilometer.schema_registry.client import framed
from support.command_line import Nilometer
from support.stub_registry import StubRegistry


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as running:
        yield running


@pytest.fixture
def topic(
    nilometer: Nilometer, bootstrap: str, registry: StubRegistry, request: pytest.FixtureRequest
) -> str:
    """A topic with a key in JSON Schema and a value in Avro, and after it two values that are neither."""
    name = request.node.name.replace("_", "-")
    nilometer("topic", "create", name)

    async def fill() -> None:
        async with package.connect(bootstrap) as kafka:
            schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
            form = Avro(registry.url, schema=schema)
            orders = kafka.producer(key=JsonSchema(registry.url, str), value=form)
            await orders.send(name, {"id": 7}, key="anna")
            await kafka.send(name, "plain")
            await kafka.send(name, framed(99, b"x"))

    asyncio.run(fill())
    return name


def test_what_names_a_schema_is_json_and_all_else_as_it_is(
    nilometer: Nilometer, topic: str, registry: StubRegistry
) -> None:
    shown = ("--from-beginning", "--until-end", "--registry", registry.url)
    done = nilometer("consume", topic, *shown)
    assert done.code == 0
    assert done.out == '{"id":7}\nplain\n\0\0\0\0cx\n'
    reason = "schema 99 of the registry: the registry does not have it"
    assert done.err == f"The value of {topic}-0 at offset 2 is not decoded: {reason}\n"
    for options in ((), ("--group", topic), ("--tail", "3")):
        places = () if options[:1] == ("--tail",) else ("--from-beginning",)
        done = nilometer(
            "consume", topic, "--json", "--registry", registry.url, "--until-end", *places, *options
        )
        first = json.loads(done.lines[0])
        assert (first["key"], first["value"]) == ('"anna"', '{"id":7}')


def test_a_registry_that_fails_is_an_error_and_nothing_is_committed(
    nilometer: Nilometer, topic: str, registry: StubRegistry
) -> None:
    registry.answers_with = 500
    shown = ("--registry", registry.url, "--from-beginning", "--until-end")
    for options in ((), ("--group", topic)):
        done = nilometer("consume", topic, *shown, *options)
        assert (done.code, done.out) == (1, "")
        assert f"--registry: schema 2: the registry answers 500 to {registry.url}/schemas/ids/2" in done.err
    registry.answers_with = None
    assert nilometer("consume", topic, *shown, "--group", topic).lines[0] == '{"id":7}'


def test_how_to_connect_to_the_registry_is_in_a_file(
    nilometer: Nilometer, topic: str, registry: StubRegistry, tmp_path: Path
) -> None:
    settings = tmp_path / "registry.properties"
    settings.write_text("basic.auth.user.info=anna:ab\n")
    registry.authorization = "Basic YW5uYTphYg=="
    shown = ("consume", topic, "--from-beginning", "--until-end")
    with_file = (*shown, "--registry-config", str(settings))
    assert nilometer(*with_file, "--registry", registry.url).lines[0] == '{"id":7}'
    assert "answers 401" in nilometer(*shown, "--registry", registry.url).err
    for options, error in (
        (with_file, "--registry-config: give the registry, too"),
        ((*shown, "--registry", "ftp://h"), "a registry has a URL such as http://127.0.0.1:8081"),
        ((*shown, "--registry-config", str(tmp_path / "no")), "cannot read"),
    ):
        done = nilometer(*options)
        assert (done.code, error in " ".join(done.err.split())) == (2, True)
    settings.write_text("user=anna\n")
    assert "user is none of basic.auth.user.info" in nilometer(*with_file, "--registry", registry.url).err
