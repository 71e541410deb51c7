"""Test authority, and its certificate for hosts of Apple and Google. Both are new at every start."""

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import NameOID

LIFETIME = timedelta(days=1)


def serve_as(hosts: Sequence[str], folder: Path) -> ssl.SSLContext:
    """Return a TLS context for these hosts, and write the authority to trust to ``folder``/ca.pem."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("test authority", "test authority", authority_key, authority_key, hosts=())
    leaf = _certificate(hosts[0], "test authority", key, authority_key, hosts=hosts)
    (folder / "ca.pem").write_bytes(_pem(authority))
    (folder / "leaf.pem").write_bytes(_pem(leaf) + private_pem(key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "leaf.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def _certificate(
    subject: str,
    issuer: str,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    hosts: Sequence[str],
) -> x509.Certificate:
    """Return a signed certificate, which is an authority's when it names no hosts."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - LIFETIME)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=not hosts, path_length=None), critical=True)
    )
    if hosts:
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_pem(key: PrivateKeyTypes) -> bytes:
    """Return a key in PKCS#8, the format of Apple's .p8 files."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
