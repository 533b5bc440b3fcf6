"""How brokers and tools connect to ZooKeeper: TLS and ``zookeeper.set.acl`` with Kafka's names, and a user.

Kafka's brokers authenticate to ZooKeeper by SASL, with the login module ``Client`` of a JAAS file: DIGEST-MD5
or Kerberos. Here the user and its password are those of ZooKeeper's authentication scheme ``digest``.
"""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.config import ConfigDefinition, ConfigError, ConfigValue, Settings, key_table
from nilometer.coordination.zookeeper.connect import ZooKeeperSecurity
from nilometer.runtime.tls import PEM, PKCS12, ClientTls, TlsFiles

SET_ACL = "zookeeper.set.acl"
USER, PASSWORD = "nilometer.zookeeper.user", "nilometer.zookeeper.password"
TLS_ENABLE = "zookeeper.ssl.client.enable"
KEYSTORE, TRUSTSTORE = "zookeeper.ssl.keystore", "zookeeper.ssl.truststore"
VERSIONS = "zookeeper.ssl.enabled.protocols"
IDENTIFICATION = "zookeeper.ssl.endpoint.identification.algorithm"
HTTPS = "https"
FORMATS = {"PEM": PEM, "PKCS12": PKCS12, "P12": PKCS12, "PFX": PKCS12}
"""The formats by their names, and by the endings of file names."""


def _why_no_algorithm(value: ConfigValue) -> str | None:
    return None if str(value).lower() in (HTTPS, "") else f"must be {HTTPS}, or empty"


ZOOKEEPER_SECURITY_KEYS = key_table(
    f"""
{SET_ACL}: boolean = false
    Whether nodes in ZooKeeper get an ACL: only nilometer.zookeeper.user may use them.
{USER}: string
    The user of ZooKeeper's authentication scheme digest.
{PASSWORD}: string secret
    The password of nilometer.zookeeper.user.
{TLS_ENABLE}: boolean = false
    Whether to connect to ZooKeeper by TLS.
{KEYSTORE}.location: string
    The file with the own key and certificate chain, for ZooKeeper.
{KEYSTORE}.type: string
    PEM or PKCS12; by default as the file's name ends: .pem, .p12, .pfx.
{KEYSTORE}.password: string secret
    The password of the key's file for ZooKeeper.
{TRUSTSTORE}.location: string
    The file with the certificates of ZooKeeper's authorities.
{TRUSTSTORE}.type: string
    PEM or PKCS12; by default as the file's name ends: .pem, .p12, .pfx.
{TRUSTSTORE}.password: string secret
    The password of a PKCS12 trust store for ZooKeeper.
{VERSIONS}: list (TLSv1.2|TLSv1.3) = TLSv1.2,TLSv1.3
    The versions of TLS for connections to ZooKeeper.
{IDENTIFICATION}: string = HTTPS
    https: the certificate of a ZooKeeper server must be for its host. Empty: not checked.
""",
    checks={"zookeeper.ssl.endpoint.identification.algorithm": _why_no_algorithm},
)
ZOOKEEPER_CONFIG = ConfigDefinition.of("ZooKeeper", ZOOKEEPER_SECURITY_KEYS)


def zookeeper_security(settings: Settings) -> ZooKeeperSecurity:
    """Return how to connect to ZooKeeper. Raises ConfigError."""
    user, password = settings.optional_string(USER) or "", settings.optional_string(PASSWORD) or ""
    if bool(user) != bool(password):
        raise ConfigError(USER if password else PASSWORD, f"{USER} and {PASSWORD} belong together")
    if ":" in user:
        raise ConfigError(USER, f"{USER} must not contain a colon")
    set_acl = settings.boolean(SET_ACL)
    if set_acl and not user:
        raise ConfigError(
            SET_ACL,
            f"{SET_ACL} needs {USER} and {PASSWORD}: an ACL is for an authenticated user. "
            "SASL (Kerberos, DIGEST-MD5) is not supported",
        )
    return ZooKeeperSecurity(user=user, password=password, set_acl=set_acl, tls=_tls(settings))


def security_from(texts: Mapping[str, str]) -> ZooKeeperSecurity:
    """Return how to connect to ZooKeeper by the settings of a broker, whose other settings are ignored.

    Raises ConfigError.
    """
    known = {key: text for key, text in texts.items() if key in ZOOKEEPER_CONFIG.keys}
    return zookeeper_security(Settings(ZOOKEEPER_CONFIG, known))


def _tls(settings: Settings) -> ClientTls | None:
    if not settings.boolean(TLS_ENABLE):
        return None
    versions = settings.strings(VERSIONS)
    if not versions:
        raise ConfigError(VERSIONS, f"{VERSIONS} must name a version of TLS")
    files = TlsFiles(
        key_file=settings.optional_string(f"{KEYSTORE}.location"),
        key_type=_format(settings, KEYSTORE),
        key_password=settings.optional_string(f"{KEYSTORE}.password"),
        trusted_file=settings.optional_string(f"{TRUSTSTORE}.location"),
        trusted_type=_format(settings, TRUSTSTORE),
        trusted_password=settings.optional_string(f"{TRUSTSTORE}.password"),
        versions=versions,
    )
    return ClientTls(files=files, checks_hostname=settings.string(IDENTIFICATION) != "")


def _format(settings: Settings, prefix: str) -> str:
    """Return the format of a file. As in ZooKeeper the name tells it unless a type is given."""
    location = settings.optional_string(f"{prefix}.location")
    kind = settings.optional_string(f"{prefix}.type")
    if location is None:
        return PEM
    found = FORMATS.get((kind or location.rpartition(".")[2]).upper())
    if found is None:
        raise ConfigError(f"{prefix}.type", f"{prefix}.type must be PEM or PKCS12: JKS is not supported")
    return found
