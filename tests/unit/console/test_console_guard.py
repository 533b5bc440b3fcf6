"""Which requests the console serves: those of its own pages; of no foreign name and no foreign page."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import Message

from nilometer.console.serving import NotProtected, Serving, check_protected
from nilometer.console.web.guard import Guard, Served, allowed_hosts, refusal
from nilometer.runtime.network import is_loopback
from nilometer.runtime.tls import ServerTls, TlsFiles

SERVED = Served("http", allowed_hosts("127.0.0.1", 8080))
OWN = "http://127.0.0.1:8080"


def status(method: str, *headers: tuple[str, str], served: Served = SERVED) -> int:
    """The status that a request is refused with; 200 if it is served."""
    raw = [(name.encode(), value.encode()) for name, value in headers]
    refused = refusal(method, Headers(raw=raw), served)
    return 200 if refused is None else refused[0]


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080", "[::1]:8080"])
def test_its_own_names_are_served(host: str) -> None:
    assert status("GET", ("host", host)) == 200


@pytest.mark.parametrize(
    "hosts",
    [
        ["rebound.example:8080"],
        ["127.0.0.1.rebound.example:8080"],
        ["127.0.0.1"],
        ["127.0.0.1:9092"],
        ["127.0.0.1:8080", "rebound.example"],
        [],
    ],
)
def test_a_foreign_name_is_refused(hosts: list[str]) -> None:
    """DNS rebinding: a foreign name that resolves to this machine."""
    assert status("GET", *(("host", host) for host in hosts)) == 421


@pytest.mark.parametrize(("scheme", "expected"), [("http", None), ("https", "max-age=31536000")])
async def test_a_browser_is_told_to_keep_to_tls_if_there_is_some(scheme: str, expected: str | None) -> None:
    guarded = Guard(PlainTextResponse("shown"), Served(scheme, ("console",)))

    async def receive() -> Message:
        raise AssertionError("no body is read")

    for host, status in ((b"console", 200), (b"other", 421)):
        sent: list[Message] = []

        async def send(message: Message, sent: list[Message] = sent) -> None:
            sent.append(message)

        await guarded({"type": "http", "method": "GET", "headers": [(b"host", host)]}, receive, send)
        assert sent[0]["status"] == status
        assert Headers(raw=sent[0]["headers"]).get("strict-transport-security") == expected


@pytest.mark.parametrize(("scheme", "port"), [("http", 80), ("https", 443)])
def test_the_port_of_the_scheme_may_be_left_out(scheme: str, port: int) -> None:
    served = Served(scheme, allowed_hosts("127.0.0.1", port, scheme))
    for host in ("localhost", "127.0.0.1", "[::1]", f"localhost:{port}"):
        own = ("origin", f"{scheme}://{host}")
        assert status("POST", ("host", host), own, served=served) == 200, host
    assert status("GET", ("host", "rebound.example"), served=served) == 421
    other = Served(scheme, allowed_hosts("127.0.0.1", 523 - port, scheme))
    assert status("GET", ("host", "localhost"), served=other) == 421


@pytest.mark.parametrize(
    ("method", "origins", "is_served"),
    [
        ("GET", [OWN], True),
        ("GET", ["http://foreign.example"], False),
        ("GET", ["null"], False),
        ("POST", [OWN], True),
        ("POST", [], False),
        ("POST", ["null"], False),
        ("POST", ["http://localhost:8080"], False),
        ("POST", ["https://127.0.0.1:8080"], False),
        ("POST", [OWN, OWN], False),
    ],
)
def test_a_foreign_page_is_refused(method: str, origins: list[str], is_served: bool) -> None:
    found = status(method, ("host", "127.0.0.1:8080"), *(("origin", origin) for origin in origins))
    assert found == (200 if is_served else 403)


@pytest.mark.parametrize(
    ("method", "site", "mode", "destination", "is_served"),
    [
        ("GET", "none", "navigate", "document", True),  # an address that the user enters
        ("GET", "same-origin", "cors", "empty", True),  # events of the console's own page
        ("GET", "cross-site", "navigate", "document", True),  # a link on a foreign page
        ("GET", "cross-site", "navigate", "iframe", False),
        ("GET", "cross-site", "no-cors", "image", False),  # <img src=".../tail">
        ("GET", "same-site", "no-cors", "script", False),  # of another port of this machine
        ("GET", "cross-site", "cors", "empty", False),
        ("POST", "cross-site", "navigate", "document", False),
    ],
)
def test_a_foreign_page_may_link_but_embed_and_fetch_nothing(
    method: str, site: str, mode: str, destination: str, is_served: bool
) -> None:
    """Without an Origin: a browser sends none with a GET for an image or a frame."""
    headers = [("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", destination)]
    if method == "POST":
        headers.append(("origin", OWN))
    assert status(method, ("host", "127.0.0.1:8080"), *headers) == (200 if is_served else 403)


def test_with_a_login_any_name_is_served_to_its_own_pages() -> None:
    """The certificate is for the right names only, and a session's cookie belongs to one of them."""
    served = Served("https", None)
    for name in ("console.example", "192.0.2.1:8443"):
        assert status("POST", ("host", name), ("origin", f"https://{name}"), served=served) == 200
        assert status("POST", ("host", name), ("origin", f"http://{name}"), served=served) == 403
        assert status("POST", ("host", name), ("origin", "https://foreign.example"), served=served) == 403
        assert status("POST", ("host", name), served=served) == 403
    assert status("GET", served=served) == 421


TLS = ServerTls(files=TlsFiles(key_file="key.pem"))


def test_only_loopback_needs_no_protection() -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert is_loopback(host)
        check_protected(Serving(host=host, port=0))
        check_protected(Serving(host=host, port=0, tls=TLS))
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com", "127.0.0.1.example", ""):
        check_protected(Serving(host=host, port=0, has_login=True, tls=TLS))
        with pytest.raises(NotProtected, match=r"give --login and --tls-certificate.*ssh -L"):
            check_protected(Serving(host=host, port=0))
        with pytest.raises(NotProtected, match=r"give --login\."):
            check_protected(Serving(host=host, port=0, tls=TLS))


def test_a_login_needs_tls_everywhere() -> None:
    for host in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(NotProtected, match="sends passwords"):
            check_protected(Serving(host=host, port=0, has_login=True))
