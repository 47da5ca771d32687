"""Settings of several replicas behind one load balancer (`cluster`): what they share, and how they reach each other."""

from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from mcproxy.settings.section import InvalidKey, Seconds, Section, worded

_SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "rediss+sentinel", "rediss+cluster")


class ClusterTls(Section):
    """Mutual TLS between replicas (`cluster.tls`). Files are PEM, relative to the configuration file."""

    certificate: str | None = None
    """File with this replica's certificate and its intermediates; it serves and sends it."""
    key: str | None = None
    """File with the private key, where the certificate's file does not hold it."""
    ca: str | None = None
    """File with the authorities that sign the replicas' certificates; others are refused."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.certificate is None and (self.key is not None or self.ca is not None):
            raise InvalidKey("needs a certificate (cluster.tls.certificate)", "ca" if self.key is None else "key")
        if self.certificate is not None and self.ca is None:
            raise InvalidKey("needs the authorities that sign them (cluster.tls.ca)", "certificate")
        return self


def _check_store(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in _SCHEMES and bool(parts.path if parts.scheme == "unix" else parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"should be a URL of Redis: {', '.join(f'{scheme}://' for scheme in _SCHEMES)}")
    return url


def _check_advertised(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError("should be an http or https URL of a host and port alone")
    return url.rstrip("/")


def _check_listen(address: str) -> str:
    try:
        parts = urlsplit(f"//{address}")
        usable = bool(parts.hostname) and parts.port is not None and parts.netloc == address
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("should be an address and a port, such as 127.0.0.1:8100 or [::1]:8100")
    return address


def _as_text(value: object) -> object:
    """404 as YAML reads it, as text."""
    return str(value) if isinstance(value, int) else value


class Cluster(Section):
    """Several replicas behind one load balancer. Without `redis` this is the only replica."""

    redis: Annotated[str, AfterValidator(_check_store)] | None = None
    """URL of the Redis or Valkey that all replicas share, such as `redis://:PASSWORD@10.0.0.5:6379/0`.

    `rediss` is TLS, `redis+cluster` a Redis Cluster; `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB` asks sentinels.
    Needs the extra `mcproxy[redis]`, a database that nothing else uses, and `proxy.secret`.
    """
    advertise: Annotated[str, AfterValidator(_check_advertised)] | None = None
    """URL by which the other replicas reach this one's internal listener, such as `http://10.0.0.7:8100`.

    If not set, `http` (with `tls`, `https`) and the address of `listen`.
    """
    name: Annotated[
        str, Field(pattern=r"^[a-z0-9]{0,16}$"), worded("should be lower-case letters and digits, at most 16")
    ] = ""
    """A short name of this replica alone, such as `a`, with which the ids of its sessions begin: `a-4f1c22a0.Yk3`.

    A load balancer may send a request there by it and save a hop: a hint, not an authority.
    """
    listen: Annotated[str, AfterValidator(_check_listen)] = "127.0.0.1:8100"
    """Address and port of the internal listener; port 0 for any free one. No client may reach it."""
    tls: ClusterTls = ClusterTls()
    """Mutual TLS between replicas.

    Without it, the bodies of forwarded messages and their answers can be read on the network; the caller's name,
    headers and credentials are encrypted all the same.
    """
    on_loss: Annotated[Literal["reopen", "404"], BeforeValidator(_as_text)] = "reopen"
    """What happens to a session whose replica died. `reopen`: another replica restores it, with its subscriptions.

    `404`: its client has to initialize anew.
    """
    timeout: Seconds = 0.05
    """Time that Redis has to answer; then the request to it counts as failed."""
    member_ttl: Seconds = 5
    """Time after which a replica that was not heard of is asked whether it lives.

    If it does not answer in that time either, it counts as dead.
    """

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        parts = urlsplit(f"//{self.listen}")
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    @model_validator(mode="after")
    def _schemes_agree(self) -> Self:
        scheme = "http" if self.tls.certificate is None else "https"
        if self.advertise is not None and urlsplit(self.advertise).scheme != scheme:
            raise InvalidKey(f"should begin with {scheme}://, as cluster.tls has it", "advertise")
        return self
