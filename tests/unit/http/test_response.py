"""HTTP responses: whole, in pieces, too large and malformed."""

from __future__ import annotations

import pytest

from nilometer.http.client import HEAD_BYTES_MAX, BadResponse, HttpResponse, parse_response
from nilometer.http.url import HttpUrl, parse_url

SIZED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\ncontent-length:  5 \r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2;name=value\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"
)
BODY_MAX = 100


@pytest.mark.parametrize(("received", "needed"), [(SIZED, len(SIZED)), (CHUNKED, CHUNKED.index(b"Trailer"))])
def test_a_response_is_complete_at_its_last_byte_and_not_before(received: bytes, needed: int) -> None:
    for length in range(needed):
        assert parse_response(received[:length], False, BODY_MAX) is None
        with pytest.raises(BadResponse, match="ended"):
            parse_response(received[:length], True, BODY_MAX)
    for length in range(needed, len(received) + 1):
        assert parse_response(received[:length], False, BODY_MAX) == HttpResponse(200, b"hello")


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    received = b"HTTP/1.0 503 Busy\nServer: x\n\nsorry"
    assert parse_response(received, False, BODY_MAX) is None
    assert parse_response(received, True, BODY_MAX) == HttpResponse(503, b"sorry")


@pytest.mark.parametrize(
    "received",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"z" * 300,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + b"x" * 101 + b"\r\n0\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 201,
        b"x" * (HEAD_BYTES_MAX + 1),
    ],
)
def test_other_answers_are_refused(received: bytes) -> None:
    with pytest.raises(BadResponse):
        parse_response(received, False, BODY_MAX)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://a.example/jwks?x=1#part", HttpUrl("https", "a.example", 443, "/jwks?x=1")),
        ("http://127.0.0.1:8080", HttpUrl("http", "127.0.0.1", 8080, "/")),
        ("https://[::1]:8443/a", HttpUrl("https", "::1", 8443, "/a")),
    ],
)
def test_urls(text: str, url: HttpUrl) -> None:
    assert parse_url(text) == url


def test_the_header_host_names_the_port_if_it_is_not_the_usual_one() -> None:
    urls = ("https://a/x", "http://a:443/x", "https://[::1]:8443")
    assert [parse_url(text).authority for text in urls] == ["a", "a:443", "[::1]:8443"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.example/jwks",
        "ftp://a/x",
        "file:///x",
        "https:///x",
        "https://u:p@a/x",
        "https://a:70000/x",
        "https://a:b/x",
        "https://a/x y",
        "https://a\r\nX: y/",
        "https://a/é",
    ],
)
def test_what_is_no_url_of_http_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no URL|must have no user|has characters"):
        parse_url(text)
