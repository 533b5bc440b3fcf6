"""Changes of the voters as Kafka's messages, and as Kafka's errors."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from nilometer.identifiers import BrokerId, LeaderEpoch, uuid_to_text
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.messages import NodeAddress
from nilometer.raft.voter_changes import (
    CHANGE_VERSIONS,
    DONE,
    AddVoter,
    ChangeResult,
    RemoveVoter,
    UpdateVoter,
    VoterChange,
    at_listener,
    audited,
    change_key,
    change_request,
    change_response,
    other_cluster,
    read_change_request,
    read_change_response,
    why_invalid,
)
from nilometer.raft.voters import VoterKey
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import api

TWO = VoterKey(BrokerId(2), uuid_to_text(uuid.UUID(int=2 << 64)))
HERE, THERE = Endpoint("C", "h", 9_093), Endpoint("D", "h", 9_094)
ENTRY = VoterEntry(TWO, (HERE,))
FOLDER = "0000000000000002 0000000000000000"
LISTENS = "02 0243 0268 2385 00"
REQUESTS: list[tuple[VoterChange, str]] = [
    (AddVoter(ENTRY, 500, waits=False), f"03 6964 000001f4 00000002 {FOLDER} {LISTENS} 00 00"),
    (RemoveVoter(TWO), f"03 6964 00000002 {FOLDER} 00"),
    (UpdateVoter(ENTRY, LeaderEpoch(7)), f"03 6964 00000007 00000002 {FOLDER} {LISTENS} 0000 0001 00 00"),
]


@pytest.mark.parametrize(("change", "expected"), REQUESTS, ids=["add", "remove", "update"])
def test_a_request_has_the_bytes_of_the_schema(change: VoterChange, expected: str) -> None:
    key = change_key(change)
    spoken = api(key, CHANGE_VERSIONS[key][1])
    message = change_request(change, "id")
    written = spoken.write_request(message)
    assert written.hex() == expected.replace(" ", "")
    assert read_change_request(key, spoken.read_request(written)) == change


def test_an_addition_of_version_0_waits_until_it_is_committed() -> None:
    written = bytes.fromhex(f"00 000001f4 00000002 {FOLDER} {LISTENS} 00".replace(" ", ""))
    read = read_change_request(ApiKey.ADD_RAFT_VOTER, api(ApiKey.ADD_RAFT_VOTER, 0).read_request(written))
    assert read == AddVoter(ENTRY, 500, waits=True)


RESPONSES: list[tuple[ApiKey, Any, str]] = [
    (ApiKey.ADD_RAFT_VOTER, (), "00000000 007e 0477687900"),
    (ApiKey.REMOVE_RAFT_VOTER, (), "00000000 007e 0477687900"),
    (
        ApiKey.UPDATE_RAFT_VOTER,
        (LeaderEpoch(7), NodeAddress(BrokerId(1), "h", 9_093)),
        "00000000 007e 01 00 0f 00000001 00000007 0268 00002385 00",
    ),
]


@pytest.mark.parametrize(("key", "leader", "expected"), RESPONSES, ids=["add", "remove", "update"])
def test_a_response_has_the_bytes_of_the_schema(key: ApiKey, leader: Any, expected: str) -> None:
    version = CHANGE_VERSIONS[key][1]
    result = ChangeResult(ErrorCode.duplicate_voter, "why")
    written = api(key, version).write_response(change_response(key, version, result, *leader))
    assert written.hex() == expected.replace(" ", "")
    read = read_change_response(api(key, version).read_response(written))
    assert read == (result if key is not ApiKey.UPDATE_RAFT_VOTER else result._replace(message=None))


INVALID: list[tuple[VoterChange, str]] = [
    (AddVoter(VoterEntry(VoterKey(BrokerId(2), ""), (HERE,)), 0), "Add voter request didn't include a valid"),
    (RemoveVoter(VoterKey(BrokerId(-1), TWO.directory_id)), "Remove voter request didn't include a valid"),
    (AddVoter(VoterEntry(TWO), 0), r"endpoint \(Endpoints\(endpoints=\{\}\)\) for the default listener C"),
    (AddVoter(VoterEntry(TWO, (THERE,)), 0), r"Endpoints\(endpoints=\{D=h:9094\}\)"),
    (AddVoter(VoterEntry(TWO, (HERE,) * 17), 0), "has more than 16 endpoints$"),
    (UpdateVoter(VoterEntry(TWO, (HERE,) * 17), LeaderEpoch(1)), "has more than 16 endpoints$"),
    *(
        (AddVoter(VoterEntry(TWO, (HERE, Endpoint(name, host, 1))), 0), "no name of a host$")
        for name, host in (
            ("D", ""),
            ("D", "."),
            ("D", "a..b"),
            ("D", ".a"),
            ("D", "a" * 64),
            ("D", "b." + "a" * 64),
            ("D", "a." * 127 + "aa"),
            ("D" * 256, "h"),
        )
    ),
    (UpdateVoter(VoterEntry(TWO, (HERE,), (0, 0)), LeaderEpoch(1)), "kraft.version 1: 0 to 0"),
    (UpdateVoter(VoterEntry(TWO, (HERE,), (2, 3)), LeaderEpoch(1)), "kraft.version 1: 2 to 3"),
    (UpdateVoter(VoterEntry(TWO, (HERE,), (-1, 1)), LeaderEpoch(1)), "kraft.version 1: -1 to 1"),
]


@pytest.mark.parametrize(("change", "why"), INVALID)
def test_what_no_quorum_could_do_is_invalid(change: VoterChange, why: str) -> None:
    refused = why_invalid(change, "C")
    assert refused is not None
    assert refused.error is ErrorCode.invalid_request
    with pytest.raises(ValueError, match=why):
        raise ValueError(refused.message)


@pytest.mark.parametrize("host", ["a" * 63, "a." * 127 + "a", "host.", "::1", "fe80::1%eth0", "10.0.0.1"])
def test_the_longest_names_and_addresses_are_accepted(host: str) -> None:
    endpoints = (HERE, *(Endpoint("D", host, 1),) * 15)
    assert why_invalid(AddVoter(VoterEntry(TWO, endpoints), 0), "C") is None


def test_a_request_for_another_cluster_is_refused_and_one_for_any_is_not() -> None:
    assert other_cluster(None, "a") is other_cluster("a", None) is other_cluster("a", "a") is None
    assert other_cluster("b", "a") == ChangeResult(
        ErrorCode.inconsistent_cluster_id, 'The given id "b" doesn\'t match the cluster id "a"'
    )


def test_the_others_connect_to_the_listener_of_the_leaders_name() -> None:
    assert why_invalid(AddVoter(VoterEntry(TWO, (THERE, HERE)), 0), "C") is None
    assert at_listener(VoterEntry(TWO, (THERE, HERE)), "C").endpoints == (HERE, THERE)


def test_the_audit_log_says_which_changes_were_made_or_may_have_been() -> None:
    change = RemoveVoter(VoterKey(BrokerId(3), "AAAAAAAAAAAAAAAAAAAAAw"))
    assert audited(change, DONE) == {"voter": "3-AAAAAAAAAAAAAAAAAAAAAw"}
    timed_out = ChangeResult(ErrorCode.request_timed_out, "no response")
    assert audited(change, timed_out) == {"voter": "3-AAAAAAAAAAAAAAAAAAAAAw", "outcome": "timed out"}
    assert audited(change, ChangeResult(ErrorCode.voter_not_found)) is None
