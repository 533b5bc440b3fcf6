"""The head of an HTTP request, whole, in pieces, and malformed."""

from __future__ import annotations

import pytest

from nilometer.http.server import HEAD_BYTES_MAX, BadRequest, RequestHead, parse_head

SCRAPE = (
    b"GET /metrics?a=1 HTTP/1.1\r\nHost: 127.0.0.1:9404\r\nUser-Agent: Prometheus/2.42.0\r\n"
    b"Accept: text/plain;version=0.0.4;q=1,*/*;q=0.1\r\nX-Empty:\r\n\r\n"
)


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        (SCRAPE, RequestHead("GET", "/metrics", is_http_1_1=True)),
        (b"HEAD / HTTP/1.0\r\n\r\n", RequestHead("HEAD", "/", is_http_1_1=False)),
        (b"GET /a HTTP/1.1\n\n", RequestHead("GET", "/a", is_http_1_1=True)),
        (b"GET http://host:1/readyz#x HTTP/1.1\r\n\r\nmore", RequestHead("GET", "/readyz", is_http_1_1=True)),
        (b"GET http://host HTTP/1.1\r\n\r\n", RequestHead("GET", "/", is_http_1_1=True)),
        (b"DELETE /x HTTP/1.1\r\n\r\n", RequestHead("DELETE", "/x", is_http_1_1=True)),
    ],
)
def test_a_head_is_found_at_its_last_byte_and_not_before(received: bytes, expected: RequestHead) -> None:
    assert parse_head(received) == expected
    end = received.index(b"\n\n") + 2 if b"\n\n" in received else received.index(b"\r\n\r\n") + 4
    for length in range(end):
        assert parse_head(received[:length]) is None


@pytest.mark.parametrize(
    "received",
    [
        b"\x00\x00\x00\x10\x00\x03\x00\x09\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET  /metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/2.0\r\n\r\n",
        b"get /metrics HTTP/1.1\r\n\r\n",
        b"GET /met rics HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\n: b\r\n\r\n",
    ],
)
def test_what_is_no_http_is_rejected(received: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_head(received)
    assert caught.value.status == 400


def test_a_head_has_a_largest_size() -> None:
    begun = b"GET / HTTP/1.1\r\nX: "
    assert parse_head(begun + b"a" * (HEAD_BYTES_MAX - len(begun))) is None
    for rest in (b"", b"\r\n\r\n"):
        with pytest.raises(BadRequest) as caught:
            parse_head(begun + b"a" * HEAD_BYTES_MAX + rest)
        assert caught.value.status == 431
