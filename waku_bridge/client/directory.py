"""Directory of a sender: the verified destinations at which clients can be notified.

Each destination needs a grant of the client for its server and its access token. That holds for a server's answers as
well as for the client's own contact code.
"""

from collections import defaultdict
from collections.abc import Iterable

from registrations.messages import QueryInfo, is_uuid
from waku_bridge.client.access_tokens import find_access_token
from waku_bridge.client.events import Destination, Reason
from waku_bridge.codec.errors import BadPublicKey
from waku_bridge.codec.keys import Identity, key_hash, parse_public_key, verify_grant


def verify_info(info: QueryInfo, client: bytes, server: bytes, opener: Identity) -> Destination | Reason:
    """Return the destination in an entry about ``client`` at ``server`` (33 bytes each), or why it is not accepted.

    ``opener`` is the identity that the access token may be sealed for. The call costs a signature recovery, and with a
    list of sealed tokens an AES-GCM attempt for each entry as well. No entry of a peer makes it raise.
    """
    if info.public_key_hash != key_hash(client):
        return Reason.FOREIGN_CLIENT
    if not is_uuid(info.installation_id):
        return Reason.BAD_INSTALLATION
    if not _is_key(server):
        return Reason.BAD_SERVER_KEY
    token = info.access_token or find_access_token(info.allowed_key_list, opener.private_key, client) or ""
    if not is_uuid(token):
        return Reason.BAD_TOKEN if token else Reason.NO_TOKEN
    if not verify_grant(info.grant, client=client, server=server, access_token=token):
        return Reason.BAD_GRANT
    return Destination(client, server, info.public_key_hash, info.installation_id, token, info.version)


class Directory:
    """All verified destinations, by client (33 bytes).

    It has one destination for each installation and server: the newest version.
    """

    def __init__(self) -> None:
        self._known: defaultdict[bytes, dict[tuple[str, bytes], Destination]] = defaultdict(dict)
        self._learned_at_ns: defaultdict[bytes, int] = defaultdict(int)
        self._active_at_ns: defaultdict[tuple[bytes, str], int] = defaultdict(int)

    def learn(self, destination: Destination, *, learned_at_ns: int) -> Reason | None:
        """Add a verified destination, unless a newer one is known. ``learned_at_ns`` is the time of its message."""
        client, place = destination.client, (destination.installation_id, destination.server)
        if self._known[client].get(place, destination).version > destination.version:
            return Reason.STALE_VERSION
        self._known[client][place] = destination
        self._learned_at_ns[client] = max(self._learned_at_ns[client], learned_at_ns)
        return None

    def forget(self, destination: Destination) -> None:
        """Remove a destination because a server reported that it is wrong. A newer one is kept."""
        known, place = self._known[destination.client], (destination.installation_id, destination.server)
        if known.get(place) == destination:
            del known[place]

    def is_fresh(self, client: bytes, *, since_ns: int) -> bool:
        """Return whether destinations of this client were learned after that time, so that no query is needed."""
        return bool(self._known[client]) and self._learned_at_ns[client] > since_ns

    def note_activity(self, client: bytes, installation_id: str, at_ns: int) -> None:
        """Note that the client wrote from this installation at that time."""
        self._active_at_ns[client, installation_id] = max(self._active_at_ns[client, installation_id], at_ns)

    def destinations(self, client: bytes) -> tuple[Destination, ...]:
        """Return all destinations of a client, the newest version first within an installation."""
        return tuple(sorted(self._known[client].values(), key=lambda d: (d.installation_id, -d.version, d.server)))

    def by_activity(self, client: bytes, installation_ids: Iterable[str]) -> list[str]:
        """Return installations, the most recently active first. Those without activity come last, ordered by id."""
        return sorted(installation_ids, key=lambda each: (-self._active_at_ns[client, each], each))


def _is_key(server: bytes) -> bool:
    try:
        return parse_public_key(server).format() == server
    except BadPublicKey:
        return False
