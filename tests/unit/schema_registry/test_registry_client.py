"""The client of a schema registry: what it asks for, how it connects, and how it says what went wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nilometer.schema_registry.client import (
    ANSWER_BYTES_MAX,
    REFERENCES_MAX,
    SCHEMAS_KEPT,
    RegistryError,
    Schema,
    SchemaRegistry,
    UnusableSchema,
    references_of,
)
from nilometer.wire.errors import ErrorCode
from support.ports import HOST, free_ports
from support.stub_registry import StubRegistry

INT = Schema("AVRO", '"int"')


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as running:
        yield running


def test_a_schema_is_read_once_and_a_subject_each_time(registry: StubRegistry):
    number = registry.add("t-value", "{}", "JSON")
    client = SchemaRegistry(f"{registry.url}/")
    assert not client.knows(number)
    assert client.by_id(number) == client.by_id(number) == Schema("JSON", "{}")
    assert client.knows(number)
    assert client.newest("t-value") == client.newest("t-value") == (number, Schema("JSON", "{}"))
    assert registry.requests == ["/schemas/ids/1", *["/subjects/t-value/versions/latest"] * 2]


def test_a_schema_is_registered_once_and_looked_up(registry: StubRegistry):
    client = SchemaRegistry(registry.url)
    with pytest.raises(UnusableSchema, match=r"subject a/b of the registry http://.* does not have this"):
        client.look_up("a/b", INT)
    assert client.register("orders-value", INT) == client.register("orders-value", INT) == 1
    assert client.look_up("orders-value", INT) == 1
    assert client.register("orders-value", Schema("JSON", '"int"')) == 2
    assert registry.requests[0] == "POST /subjects/a%2Fb"


def test_a_schema_has_those_that_it_refers_to(registry: StubRegistry):
    registry.add("zip", '"string"')
    registry.add("place", "{}", references=[{"name": "Zip", "subject": "zip", "version": 1}])
    number = registry.add("t", "[]", references=[{"name": "Place", "subject": "place", "version": 1}])
    place = Schema("AVRO", "{}", (("Zip", Schema("AVRO", '"string"')),))
    assert SchemaRegistry(registry.url).by_id(number) == Schema("AVRO", "[]", (("Place", place),))


@pytest.mark.parametrize(
    ("references", "said"),
    [
        ([{"name": "T", "subject": "t", "version": 1}], f"refers to more than {REFERENCES_MAX} schemas"),
        ([{"name": "T"}], "has no name, subject and version"),
        ([{"name": "T", "subject": "other", "version": 1}], "does not have it"),
    ],
)
def test_references_that_cannot_be_followed_are_an_error(registry, references, said):
    number = registry.add("t", "[]", references=references)
    with pytest.raises(UnusableSchema, match=said):
        SchemaRegistry(registry.url).by_id(number)


def test_a_schema_may_not_refer_to_more_by_one_that_was_read_before(registry: StubRegistry):
    client = SchemaRegistry(registry.url)
    references: list[dict[str, Any]] = []
    for level in range(REFERENCES_MAX + 1):
        number = registry.add(f"t{level}", "[]", references=references)
        assert len(references_of(client.by_id(number))) == level
        references = [{"name": f"T{level}", "subject": f"t{level}", "version": 1}]
    with pytest.raises(UnusableSchema, match=f"refers to more than {REFERENCES_MAX} schemas"):
        client.by_id(registry.add("t", "[]", references=references))


def test_the_schemas_that_are_kept_are_bounded(registry: StubRegistry):
    for number in range(SCHEMAS_KEPT + 1):
        registry.add("t", json.dumps(number))
    client = SchemaRegistry(registry.url)
    for number in (*range(1, SCHEMAS_KEPT + 1), 1, SCHEMAS_KEPT + 1):
        client.by_id(number)
    assert client.knows(1)  # it was used last but one
    assert not client.knows(2)


@pytest.mark.parametrize(
    ("user", "settings", "header"),
    [
        ("", {"basic.auth.user.info": "anna:a:b"}, "Basic YW5uYTphOmI="),
        ("anna:a%3Ab@", {}, "Basic YW5uYTphOmI="),
        ("", {"bearer.auth.token": "abc"}, "Bearer abc"),
    ],
)
def test_credentials_are_sent_and_in_no_error(registry: StubRegistry, user, settings, header):
    number = registry.add("t", '"int"')
    registry.authorization = header
    client = SchemaRegistry(registry.url.replace("://", f"://{user}"), settings)
    assert client.by_id(number) == INT
    registry.authorization = "another"
    with pytest.raises(RegistryError, match=r"answers 401 to http://.*: Unauthorized") as error:
        client.by_id(number + 1)
    assert "anna" not in str(error.value)
    assert not error.value.retriable


@pytest.mark.parametrize(
    ("url", "settings", "said"),
    [
        ("file:///etc/passwd", {}, "a URL such as http://127.0.0.1:8081"),
        ("https://", {}, "a URL such as"),
        ("http://h", {"url": "x"}, "url is none of basic.auth.user.info"),
        ("http://h", {"basic.auth.user.info": "anna"}, "of the form user:password"),
        ("https://h", {"ssl.ca.location": "/nowhere.pem"}, "ssl.ca.location=/nowhere.pem: .*No such file"),
    ],
)
def test_settings_that_cannot_be_used_are_named(url: str, settings: dict[str, str], said: str):
    with pytest.raises(RegistryError, match=f"^INVALID_CONFIG: .*{said}"):
        SchemaRegistry(url, settings)


@pytest.mark.parametrize(
    ("status", "answer", "said", "retriable"),
    [
        (500, b'{"message": "no leader"}', "answers 500 to http://.*/schemas/ids/1: no leader", True),
        (429, b"busy", "answers 429 to http://[^ ]*$", True),
        (422, b"[]", "answers 422 to", False),
        (302, b"", "answers 302 to", False),
        (200, b"[]", "is no JSON object", False),
        (200, b"{", "does not answer: JSONDecodeError", True),
        (200, b" " * (ANSWER_BYTES_MAX + 1), "is no JSON object of at most 4 MiB", False),
        (200, b'{"schema": 1}', "the registry's answer has no schema", False),
    ],
)
def test_what_the_registry_answers_wrongly_is_said(registry: StubRegistry, status, answer, said, retriable):
    registry.answers_with, registry.answer = status, answer
    with pytest.raises(RegistryError, match=said) as error:
        SchemaRegistry(registry.url).by_id(1)
    assert error.value.retriable == retriable


def test_a_registry_that_cannot_be_reached_is_named():
    url = f"http://{HOST}:{free_ports(1)[0]}"
    with pytest.raises(RegistryError, match=f"the registry {url} does not answer: .*refused") as error:
        SchemaRegistry(url).newest("t")
    assert error.value.code is ErrorCode.network_exception
