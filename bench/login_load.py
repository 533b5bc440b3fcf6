"""Logins as fast as they go: `python -m bench.login_load`, a Python program without a client library.

    HOST PORT MECHANISM USER PASSWORD SECONDS AT_ONCE [AUTHORITY]

AT_ONCE processes, each with one login after the other: connect, shake hands if AUTHORITY is given (the file
of its certificate: TLS, a whole handshake each time), SaslHandshake, SaslAuthenticate until it is complete,
reset the connection. The password is hashed once: what is timed is the broker, not a client's iterations.

Prints one line of JSON: logins in SECONDS, quantiles in ms, and how busy these processes were. A login that
is refused ends it with status 1.
"""

from __future__ import annotations

import json
import multiprocessing
import secrets
import socket
import ssl
import struct
import sys
import time
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection

from nilometer.security.scram import (
    ScramMechanism,
    client_key_of,
    encode_base64,
    parse_server_first,
    salted_password,
    sign,
    stored_key_of,
    xor,
)

TIMEOUT_S = 30.0
WARM_UP_LOGINS = 5
"""Of each process, which do not count."""
_HANDSHAKE, _AUTHENTICATE = 17, 36
_VERSION = 1
"""Of both requests: headers without tagged fields."""
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Wanted:
    host: str
    port: int
    mechanism: str
    user: str
    password: str
    seconds: float
    authority: str | None


class Refused(Exception):
    """The broker refuses the login, or ends the connection."""


def log_in(wanted: Wanted, context: ssl.SSLContext | None) -> None:
    """Raises Refused, OSError."""
    plain = socket.create_connection((wanted.host, wanted.port), TIMEOUT_S)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # the port is free again at once
    with context.wrap_socket(plain, server_hostname=wanted.host) if context is not None else plain as peer:
        name = wanted.mechanism.encode()
        _ask(peer, _HANDSHAKE, struct.pack(">h", len(name)) + name)
        if wanted.mechanism == "PLAIN":
            _authenticate(peer, f"\0{wanted.user}\0{wanted.password}".encode())
        else:
            _exchange(peer, wanted)


def _exchange(peer: socket.socket, wanted: Wanted) -> None:
    """The messages of SCRAM (RFC 5802)."""
    mechanism = ScramMechanism(wanted.mechanism)
    bare = f"n={wanted.user},r={secrets.token_hex(16)}"
    first = parse_server_first(_authenticate(peer, f"n,,{bare}".encode()))
    key = _client_key(mechanism, wanted.password, first.salt, first.iterations)
    without_proof = f"c=biws,r={first.nonce}"
    signed = f"{bare},{first.text},{without_proof}".encode()
    proof = xor(key, sign(mechanism, stored_key_of(mechanism, key), signed))
    answer = _authenticate(peer, f"{without_proof},p={encode_base64(proof)}".encode())
    if not answer.startswith(b"v="):
        raise Refused("the broker does not prove that it knows the user")


@cache
def _client_key(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    return client_key_of(mechanism, salted_password(mechanism, password, salt, iterations))


def _authenticate(peer: socket.socket, message: bytes) -> bytes:
    """Return the broker's message."""
    body = _ask(peer, _AUTHENTICATE, struct.pack(">i", len(message)) + message)
    (text_size,) = struct.unpack_from(">h", body)
    at = 2 + max(text_size, 0)
    (size,) = struct.unpack_from(">i", body, at)
    return body[at + 4 : at + 4 + size]


def _ask(peer: socket.socket, key: int, body: bytes) -> bytes:
    """Return what follows the error code in the response. Raises Refused."""
    frame = struct.pack(">hhih", key, _VERSION, 1, 5) + b"bench" + body
    peer.sendall(struct.pack(">i", len(frame)) + frame)
    (size,) = struct.unpack(">i", _receive(peer, 4))
    answer = _receive(peer, size)
    (error,) = struct.unpack_from(">h", answer, 4)
    if error:
        raise Refused(f"API {key}: error code {error}")
    return answer[6:]


def _receive(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            raise Refused("the broker has closed the connection")
        data += part
    return data


def _work(wanted: Wanted, tell: Connection) -> None:
    """One process: tells its times and the seconds of CPU that it took, or what went wrong."""
    try:
        context = ssl.create_default_context(cafile=wanted.authority) if wanted.authority else None
        for _ in range(WARM_UP_LOGINS):
            log_in(wanted, context)
        cpu, began, times = time.process_time(), time.monotonic(), list[float]()
        while (at := time.monotonic()) < began + wanted.seconds:
            log_in(wanted, context)
            times.append(time.monotonic() - at)
        tell.send((times, time.monotonic() - began, time.process_time() - cpu))
    except (Refused, OSError) as error:
        tell.send(f"{type(error).__name__}: {error}")


def play(wanted: Wanted, at_once: int) -> dict[str, float]:
    """Raises Refused."""
    hears, processes = list[Connection](), list[multiprocessing.Process]()
    for _ in range(at_once):
        hear, tell = multiprocessing.Pipe(duplex=False)
        processes.append(multiprocessing.Process(target=_work, args=(wanted, tell), daemon=True))
        hears.append(hear)
        processes[-1].start()
        tell.close()
    try:
        told = [hear.recv() for hear in hears]
    except EOFError:
        raise Refused("a process has ended") from None
    for process in processes:
        process.join()
    if problems := [each for each in told if isinstance(each, str)]:
        raise Refused(problems[0])
    times = sorted(each for found, _, _ in told for each in found)
    shares = [100 * cpu / taken for _, taken, cpu in told]
    return {
        "logins": len(times),
        "per_s": sum(len(found) / taken for found, taken, _ in told),
        **{name: times[int(len(times) * share)] * 1e3 for name, share in (("p50", 0.5), ("p99", 0.99))},
        "client_cpu_percent": sum(shares),
        "client_busiest_percent": max(shares),
    }


def main() -> int:
    host, port, mechanism, user, password, seconds, at_once, *authority = sys.argv[1:]
    wanted = Wanted(
        host, int(port), mechanism, user, password, float(seconds), authority[0] if authority else None
    )
    try:
        print(json.dumps(play(wanted, int(at_once))))
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
