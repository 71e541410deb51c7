"""Answers of the port to requests without CONNECT: Google's token endpoint, and for tests the record of pushes and the
faults.

`/dev/pushes` has the fields of the development gorush's. `/dev/faults` takes the same, and the ways, so that one test
reads and breaks either.
"""

from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

import orjson

from tests.rig.providers.ledger import Ledger
from tests.rig.providers.messages import Reply, Request, json_reply
from tests.rig.providers.ways import ProviderFaults

ACCESS_TOKEN = "an-access-token"
GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN = {"access_token": ACCESS_TOKEN, "token_type": "Bearer", "expires_in": 3600}
REVOKED = {"error": "invalid_grant", "error_description": "Invalid grant: account not found"}


async def answer(request: Request, ledger: Ledger, faults: ProviderFaults, cut: Callable[[], None]) -> Reply:
    """Answer a request. ``cut`` breaks the connections on broken ways to Apple and Google."""
    target = urlsplit(request.path)
    match request.method, target.path:
        case "POST", "/token" if parse_qs(request.body.decode()).get("grant_type") == [GRANT_TYPE]:
            return json_reply(TOKEN)
        case "POST", "/token" | "/token/revoked":
            return json_reply(REVOKED, HTTPStatus.BAD_REQUEST)
        case "GET", "/dev/pushes":
            since = int(parse_qs(target.query).get("since", ["0"])[0])
            pushes = ledger.since(since)
            return json_reply({"pushes": pushes, "last_id": since + len(pushes)})
        case "POST" | "DELETE", "/dev/faults":
            faults.update(orjson.loads(request.body)) if request.method == "POST" else faults.clear()
            cut()
            return json_reply(faults.as_dict())
        case "GET", "/healthz":
            return Reply()
    return Reply(HTTPStatus.NOT_FOUND)
