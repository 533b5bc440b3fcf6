"""A certificate authority for tests: it issues keys with certificates, as PEM files."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

DAYS = "2"


class Authority:
    """``certificate``: the file with the authority's own certificate."""

    def __init__(self, folder: Path, name: str = "Test Authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key, self.certificate = folder / "authority.key", folder / "authority.pem"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *(
                "-subj",
                f"/CN={name}",
                "-days",
                DAYS,
                "-keyout",
                str(self._key),
                "-out",
                str(self.certificate),
            ),
        )

    def issue(
        self, name: str, subject: str, *, hosts: str = "IP:127.0.0.1,DNS:localhost", password: str = ""
    ) -> Path:
        """Return a file with a new private key, encrypted if ``password`` is given, and its certificate.

        ``subject`` is in OpenSSL's form: ``/O=Nilometer/CN=alice``.
        """
        key, request, issued, whole = (self._folder / f"{name}.{end}" for end in ("key", "csr", "crt", "pem"))
        _openssl(
            *(
                "req",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-utf8",
                "-utf8",
                "-subj",
                subject,
            ),
            *(("-passout", f"pass:{password}") if password else ("-nodes",)),
            *("-addext", f"subjectAltName={hosts}", "-keyout", str(key), "-out", str(request)),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key)),
            *("-copy_extensions", "copy", "-days", DAYS, "-out", str(issued)),
        )
        new = whole.with_suffix(".new")
        new.write_text(key.read_text() + issued.read_text())
        return new.replace(whole)

    def key_store(self, name: str, subject: str, password: str) -> Path:
        """Return a PKCS12 store with a new private key and its certificate chain."""
        whole, store = self.issue(name, subject), self._folder / f"{name}.p12"
        new = store.with_suffix(".new")
        _openssl(
            *("pkcs12", "-export", "-in", str(whole), "-certfile", str(self.certificate)),
            *("-passout", f"pass:{password}", "-out", str(new)),
        )
        return new.replace(store)

    def trust_store(self, password: str) -> Path:
        """Return a PKCS12 store with the authority's certificate only."""
        store = self._folder / "trusted.p12"
        _openssl(
            *("pkcs12", "-export", "-nokeys", "-in", str(self.certificate)),
            *("-passout", f"pass:{password}", "-out", str(store)),
        )
        return store

    def context(self, key: Path | None = None, *, checks_hostname: bool = True) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority; ``key``: its key and certificate."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        context.check_hostname = checks_hostname
        if key is not None:
            context.load_cert_chain(key)
        return context


def _openssl(*arguments: str) -> None:
    done = subprocess.run(("openssl", *arguments), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
