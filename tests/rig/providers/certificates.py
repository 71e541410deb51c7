"""Test authority, its certificate for hosts of Apple and Google, and the credentials that both give to an operator of
gorush. All are new at every start; gorush verifies its credentials with neither.
"""

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import NameOID

LIFETIME = timedelta(days=1)
PROJECT = "status-im"
RSA_BITS = 2048


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


def write_credentials(folder: Path, url: str) -> None:
    """Write Apple's signing key `apple.p8`, Google's service account `google.json`, and `revoked.json`, which gets no
    token.

    ``token_uri`` is plain HTTP because gorush 1.22 fails at HTTP/2 there when it has a proxy (gorush.md, 4.2).
    """
    (folder / "apple.p8").write_bytes(private_pem(ec.generate_private_key(ec.SECP256R1())))
    key = private_pem(rsa.generate_private_key(65537, RSA_BITS)).decode()
    for name, path in {"google": "/token", "revoked": "/token/revoked"}.items():
        account = {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "test",
            "private_key": key,
            "client_email": f"{name}@{PROJECT}.example",
            "token_uri": url + path,
        }
        (folder / f"{name}.json").write_bytes(orjson.dumps(account))
