"""The random requests of an administrator: every API and version, and always the same for a seed."""

from __future__ import annotations

import uuid

from nilometer.simulation.workload.random_administrator import KINDS, Subjects, seeded_admin_request
from nilometer.wire.messages import decode_request, encode_request
from support.brokers.served_apis import ranges

VERSIONS = ranges(for_brokers=False)
SUBJECTS = Subjects(topics=("kept", "other"), brokers=(1, 2, 3), topic_ids=(uuid.UUID(int=7),))


def test_every_api_and_version_is_drawn_and_can_be_written_and_read() -> None:
    drawn: set[tuple[int, int]] = set()
    for number in range(3000):
        request = seeded_admin_request(5, number, SUBJECTS, VERSIONS)
        frame = encode_request(number, "admin", request.message)
        assert decode_request(frame[4:])[1] == request.message
        drawn.add((request.key, request.version))
    served = {(key, version) for key in KINDS for version in range(VERSIONS[key][0], VERSIONS[key][1] + 1)}
    assert drawn == served


def test_a_seed_and_a_number_name_a_request() -> None:
    def drawn(seed: int) -> list[object]:
        return [seeded_admin_request(seed, number, SUBJECTS, VERSIONS) for number in range(50)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
