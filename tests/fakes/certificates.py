"""An authority, and the certificates that it signs, for one test's folder.

They have what RFC 5280 asks for: Python 3.13 and newer accept no others.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Files:
    certificate: str
    key: str


class Authority:
    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_SIGNS, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        )
        self.file = str(folder / f"{name}.pem")
        Path(self.file).write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(self, file: str, *common_names: str, dns: Sequence[str] = (), expired: bool = False) -> Files:
        """A certificate for loopback, and for names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names])
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *(x509.DNSName(name) for name in dns)]
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(subject, self._name, key, -2 if expired else 0)
            .add_extension(x509.SubjectAlternativeName(names), critical=not common_names)
            .add_extension(authority, critical=False)
        )
        files = Files(str(self._folder / f"{file}.pem"), str(self._folder / f"{file}.key"))
        Path(files.certificate).write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        Path(files.key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files

    def self_signed(self, file: str) -> Files:
        """A certificate for loopback that nobody else signed."""
        return Authority(self._folder, f"{file}-issuer").issue_for_itself(file)

    def issue_for_itself(self, file: str) -> Files:
        """A certificate of its own key for loopback, which is no authority's."""
        name = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = _builder(self._name, self._name, self._key).add_extension(name, critical=False)
        files = Files(str(self._folder / f"{file}.pem"), str(self._folder / f"{file}.key"))
        Path(files.certificate).write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        Path(files.key).write_bytes(self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files

    def client(self, files: Files | None = None) -> ssl.SSLContext:
        """How a client that trusts this authority speaks TLS, and with which certificate."""
        context = ssl.create_default_context(cafile=self.file)
        if files is not None:
            context.load_cert_chain(files.certificate, files.key)
        return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, hours: int = 0
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
    )
