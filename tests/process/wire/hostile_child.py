"""Run by `test_hostile_bytes`: decodes what the fuzzer makes, in a process that may not allocate much.

Arguments: seed, number of frames. Prints how many were refused and how many decoded.
"""

from __future__ import annotations

import random
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nilometer.wire.errors import MalformedRequest, MalformedResponse, UnsupportedVersion
from nilometer.wire.messages import api, decode_request, decode_response, encode_response
from support.wire.frame_fuzzer import HUGE_NUMBERS, HUGE_VARINTS, MutatedFrame, mutated_frames
from support.wire.random_messages import random_message

ADDRESS_SPACE_MAX = 1_500_000_000


def mutated_response(mutation: MutatedFrame) -> bytes:
    """A response of the same API and version, damaged in one to three places."""
    chance = random.Random(f"{mutation.seed}.{mutation.index}.response")
    codec = api(mutation.api_key, mutation.api_version)
    message = random_message(codec.response_type, chance)
    frame = bytearray(encode_response(1, codec.key, codec.version, message)[4:])
    for _ in range(chance.randint(1, 3)):
        position = chance.randrange(len(frame))
        number = chance.choice((*HUGE_NUMBERS, *HUGE_VARINTS, chance.randbytes(2)))
        frame[position : position + chance.choice((1, len(number)))] = number
    return bytes(frame[: chance.choice((len(frame), len(frame) // 2))])


def main(seed: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_MAX, ADDRESS_SPACE_MAX))
    refused = decoded = 0
    for mutation in mutated_frames(seed, count):
        print(mutation.describe(), file=sys.stderr, flush=True)
        try:
            decode_request(mutation.frame[4:])
            decoded += 1
        except (MalformedRequest, UnsupportedVersion):
            refused += 1
        try:
            decode_response(mutation.api_key, mutation.api_version, mutated_response(mutation))
            decoded += 1
        except MalformedResponse:
            refused += 1
    print(refused, decoded)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
