"""Self-made credentials in the forms that Apple and Google give to an operator of gorush. gorush verifies them with
neither when it starts.
"""

from pathlib import Path

import orjson
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.rig.providers.certificates import private_pem

PROJECT = "status-im"
RSA_BITS = 2048


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
