"""Requests for the SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any, cast

from nilometer.broker.api.controller_requests import CHANGE_BYTES_MAX, ControllerRequests
from nilometer.broker.api.spec import Request
from nilometer.broker.api.users import Parts, handle_alter
from nilometer.broker.request_context import RequestContext
from nilometer.broker.responses import wait_whole
from nilometer.broker.turns import Turns
from nilometer.runtime.runtime import SystemClock
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import RequestHeader, api, decode_response

USERS = 9_000
KEY = ApiKey.ALTER_USER_SCRAM_CREDENTIALS


async def test_the_refusal_of_thousands_of_credentials_is_made_while_it_is_encoded() -> None:
    """Made before, it held the event loop for 38 ms."""
    codec = api(KEY, 0)
    salt = b"s" * (CHANGE_BYTES_MAX // USERS)
    upsertions = tuple(
        codec.make_request(
            "ScramCredentialUpsertion",
            name=f"user {number}",
            mechanism=1,
            iterations=4096,
            salt=salt,
            salted_password=b"p" * 32,
        )
        for number in range(USERS)
    )
    body = codec.request(deletions=(), upsertions=upsertions)
    request = Request(RequestHeader(KEY, 0, 1, "test", 0), body, codec, cast(Any, None), RequestContext())
    nothing = cast(Any, SimpleNamespace())
    requests = ControllerRequests(SystemClock(), *(nothing,) * 6)
    calls = 0

    def count_call(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count_call)
    try:
        answered = handle_alter(Parts(nothing, nothing, nothing, requests), request)
    finally:
        sys.setprofile(None)
    assert calls < 3 * USERS, "a few for the length of a name, and for its place in the response"
    frame = await wait_whole(await asyncio.wait_for(answered, 1), Turns(SystemClock()))
    results = decode_response(KEY, 0, frame[4:])[1].results
    assert [each.user for each in results] == [f"user {number}" for number in range(USERS)]
    assert {each.error_code for each in results} == {ErrorCode.invalid_request}
