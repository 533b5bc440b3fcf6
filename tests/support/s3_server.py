"""An S3-compatible server on loopback, of another project, with one bucket."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import Request, urlopen

from .ports import HOST

BUCKET = "archives"
KEY, SECRET = "writer", "writers-secret"


@dataclass(frozen=True, slots=True)
class S3Server:
    port: int

    def url(self, path: str, *, key: str = KEY, bucket: str = BUCKET) -> str:
        """Return the URI of a folder in the bucket, with everything that is needed to use it."""
        options = f"endpoint_override={HOST}:{self.port}&scheme=http&region=us-east-1"
        return f"s3://{key}:{SECRET}@{bucket}/{path}?{options}"

    @property
    def client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=f"http://{HOST}:{self.port}",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    def keys(self, prefix: str) -> list[str]:
        found = self.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for one in found.get("Contents", [])]

    @contextmanager
    def checking_credentials(self) -> Iterator[None]:
        """Reject every key that the server did not issue, which is all of them."""
        self._requests_without_check("0")
        try:
            yield
        finally:
            self._requests_without_check("inf")

    def _requests_without_check(self, count: str) -> None:
        address = f"http://{HOST}:{self.port}/moto-api/reset-auth"
        request = Request(address, count.encode(), {"Content-Type": "text/plain"}, method="POST")
        with urlopen(request, timeout=60):
            pass


@contextmanager
def s3_server() -> Iterator[S3Server]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # not a line for each request
    server = ThreadedMotoServer(HOST, 0, verbose=False)
    server.start()
    try:
        running = S3Server(server.get_host_and_port()[1])
        running.client.create_bucket(Bucket=BUCKET)
        yield running
    finally:
        server.stop()
