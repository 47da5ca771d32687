"""TLS contexts of outgoing connections. Their files are read again when they change, without a restart.

A file that cannot be read, or a certificate without its key, leaves the last context that worked in use: both are
common for a moment while a certificate is replaced.
"""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from typing import Final

import msgspec

MOST: Final = 256
"""Contexts that are kept."""

_Versions = tuple[tuple[int, int, int] | None, ...]


class Certificates(msgspec.Struct, frozen=True):
    """Authorities beside the system's (`ca`), a client certificate, and whether the server's is verified."""

    ca: tuple[str, ...] = ()
    certificate: str | None = None
    key: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """The context for a new connection. Raises OSError, which names the file, if there never was a usable one."""
        return _context(self).current()


class _RenewedContext:
    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self._context: ssl.SSLContext | None = None
        self._versions: _Versions = ()

    def current(self) -> ssl.SSLContext:
        versions = self._seen()
        if self._context is None or versions != self._versions:
            try:
                self._context = _made(self._certificates)
                self._versions = versions
            except OSError:
                if self._context is None:
                    raise
        return self._context

    def _seen(self) -> _Versions:
        system = ssl.get_default_verify_paths()
        own = self._certificates
        files = (*own.ca, own.certificate, own.key, system.cafile, system.capath)
        return tuple(None if file is None else _version(file) for file in files)


@lru_cache(MOST)
def _context(certificates: Certificates) -> _RenewedContext:
    return _RenewedContext(certificates)


def _version(file: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _made(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    for file in certificates.ca:
        try:
            context.load_verify_locations(file)
        except OSError as error:  # as ssl.SSLError
            raise OSError(None, f"{file} (ca) holds no certificate that can be read: {_reason(error)}") from error
    if certificates.certificate is not None:
        try:
            # With a password: OpenSSL would ask the terminal for that of an encrypted key.
            context.load_cert_chain(certificates.certificate, certificates.key, password="")
        except OSError as error:
            names = " and ".join(each for each in (certificates.certificate, certificates.key) if each is not None)
            raise OSError(None, f"{names} (tls.certificate, tls.key) cannot be used: {_reason(error)}") from error
    if not certificates.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)
