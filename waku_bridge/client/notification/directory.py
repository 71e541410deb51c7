"""Directory of a sender: the verified destinations at which clients can be notified.

Each destination needs a grant of the client for its server and its access token. That holds for a server's answers as
well as for the client's own contact code.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from registrations.messages import QueryInfo
from registrations.uuids import is_uuid
from waku_bridge.client.events import Destination, Reason
from waku_bridge.client.registration.schedules import SECOND_NS
from waku_bridge.codec.crypto.access_tokens import find_access_token
from waku_bridge.codec.crypto.grants import verify_grant
from waku_bridge.codec.errors import BadPublicKey
from waku_bridge.codec.keys import Identity, key_hash, parse_public_key


def verify_info(info: QueryInfo, client: bytes, server: bytes, opener: Identity) -> Destination | Reason:
    """Return the destination in an entry about ``client`` at ``server`` (33 bytes each), or why it is not accepted.

    ``opener`` is the identity that the access token may be sealed for. The call costs a signature recovery, and with a
    list of sealed tokens an AES-GCM attempt for each entry as well. No entry of a peer makes it raise.
    """
    fault = _find_fault(info, client, server)
    if fault:
        return fault
    token = info.access_token or find_access_token(info.allowed_key_list, opener.private_key, client)
    if not token:
        return Reason.NO_TOKEN
    if not is_uuid(token):
        return Reason.BAD_TOKEN
    if not verify_grant(info.grant, client=client, server=server, access_token=token):
        return Reason.BAD_GRANT
    return Destination(client, server, info.public_key_hash, info.installation_id, token, info.version)


def _find_fault(info: QueryInfo, client: bytes, server: bytes) -> Reason | None:
    """Return the fault of an entry, apart from its token and grant, or None."""
    if info.public_key_hash != key_hash(client):
        return Reason.FOREIGN_CLIENT
    if not is_uuid(info.installation_id):
        return Reason.BAD_INSTALLATION
    return None if _is_key(server) else Reason.BAD_SERVER_KEY


@dataclass(slots=True)
class _Person:
    """One client. ``destinations`` are by installation and server, and ``active_at_ns`` is by installation."""

    destinations: dict[tuple[str, bytes], Destination] = field(default_factory=dict)
    active_at_ns: dict[str, int] = field(default_factory=dict)
    learned_at_ns: int = 0


class Directory:
    """All verified destinations, by client (33 bytes).

    It has one destination for each installation and server: the newest version.
    """

    def __init__(self) -> None:
        self._people: dict[bytes, _Person] = {}

    def learn(self, destination: Destination, *, learned_at_ns: int) -> Reason | None:
        """Add a verified destination, unless a newer one is known. ``learned_at_ns`` is the time of its message."""
        person = self._people.setdefault(destination.client, _Person())
        key = (destination.installation_id, destination.server)
        known = person.destinations.get(key)
        if known and known.version > destination.version:
            return Reason.STALE_VERSION
        person.destinations[key] = destination
        person.learned_at_ns = max(person.learned_at_ns, learned_at_ns)
        return None

    def forget(self, destination: Destination) -> None:
        """Remove a destination because a server reported that it is wrong. A newer one is kept."""
        person = self._people.get(destination.client, _Person())
        key = (destination.installation_id, destination.server)
        if person.destinations.get(key) == destination:
            del person.destinations[key]

    def is_fresh(self, client: bytes, *, now_ns: int, fresh_seconds: float) -> bool:
        """Return whether destinations of this client were learned lately, so that no query is needed."""
        person = self._people.get(client)
        if person is None or not person.destinations:
            return False
        return now_ns - person.learned_at_ns < fresh_seconds * SECOND_NS

    def note_activity(self, client: bytes, installation_id: str, at_ns: int) -> None:
        """Note that the client wrote from this installation at that time."""
        active = self._people.setdefault(client, _Person()).active_at_ns
        active[installation_id] = max(active.get(installation_id, 0), at_ns)

    def destinations(self, client: bytes) -> tuple[Destination, ...]:
        """Return all destinations of a client, the newest version first within an installation."""
        person = self._people.get(client, _Person())
        return tuple(sorted(person.destinations.values(), key=lambda d: (d.installation_id, -d.version, d.server)))

    def by_activity(self, client: bytes, installation_ids: Iterable[str]) -> list[str]:
        """Return installations, the most recently active first. Those without activity come last, ordered by id."""
        active = self._people.get(client, _Person()).active_at_ns
        return sorted(installation_ids, key=lambda installation_id: (-active.get(installation_id, 0), installation_id))

    def installation_ids(self, client: bytes) -> Collection[str]:
        """Return the installations with a known destination."""
        return {destination.installation_id for destination in self.destinations(client)}


def _is_key(server: bytes) -> bool:
    try:
        return parse_public_key(server).format() == server
    except BadPublicKey:
        return False
