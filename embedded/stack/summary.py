"""The summary for the operator once everything runs. It has no secret."""

from collections.abc import Iterator, Sequence

from coincurve import PrivateKey

from embedded.servers.parts import EmbeddedPart


def summary(url: str, private_key: bytes, embedded: Sequence[EmbeddedPart]) -> Iterator[str]:
    """Yield the lines that are shown once the server is ready."""
    public_key = PrivateKey(private_key).public_key
    yield f"Ready. Console: {url}/admin/ (first user: admin)"
    yield f"Server public key: {public_key.format().hex()}"
    yield f"Server chat key: 0x{public_key.format(compressed=False).hex()}"
    for part in embedded:
        yield f"Embedded {part.spec.name}: {part.address}"
