"""What a sender knows about where people can be notified, and how it came to believe it.

Nothing is believed without a grant of the client for that server and that access token, whether a server's answer says
it or the client's own contact code.
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
    """Return the destination that an entry told by ``server`` or the ``client`` (33 bytes each) means, or why none.

    ``opener`` is the identity that the access token may be sealed for. It costs a signature recovery, and with a list
    of sealed tokens an AES-GCM attempt for each entry as well. It never raises for what a peer sent.
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
    """Return what is wrong with an entry, apart from its token."""
    if info.public_key_hash != key_hash(client):
        return Reason.FOREIGN_CLIENT
    if not is_uuid(info.installation_id):
        return Reason.BAD_INSTALLATION
    return None if _is_key(server) else Reason.BAD_SERVER_KEY


@dataclass(slots=True)
class _Person:
    """What is known of one client. ``destinations`` are by installation and server; ``active_at_ns`` is by
    installation.
    """

    destinations: dict[tuple[str, bytes], Destination] = field(default_factory=dict)
    active_at_ns: dict[str, int] = field(default_factory=dict)
    heard_at_ns: int = 0


class Directory:
    """Everything that is believed, by client (33 bytes).

    It has one destination per installation and server: the newest version.
    """

    def __init__(self) -> None:
        self._people: dict[bytes, _Person] = {}

    def learn(self, destination: Destination, *, heard_at_ns: int) -> Reason | None:
        """Believe a verified destination, unless a newer one is known. ``heard_at_ns`` is how old the news is."""
        person = self._people.setdefault(destination.client, _Person())
        key = (destination.installation_id, destination.server)
        known = person.destinations.get(key)
        if known and known.version > destination.version:
            return Reason.STALE_VERSION
        person.destinations[key] = destination
        person.heard_at_ns = max(person.heard_at_ns, heard_at_ns)
        return None

    def forget(self, destination: Destination) -> None:
        """Remove a destination, because a server said that it is wrong. What has been learned since is kept."""
        person = self._people.get(destination.client, _Person())
        key = (destination.installation_id, destination.server)
        if person.destinations.get(key) == destination:
            del person.destinations[key]

    def is_fresh(self, client: bytes, *, now_ns: int, fresh_seconds: float) -> bool:
        """Return whether we heard about this client lately, so that no server need be asked."""
        person = self._people.get(client)
        if person is None or not person.destinations:
            return False
        return now_ns - person.heard_at_ns < fresh_seconds * SECOND_NS

    def note_activity(self, client: bytes, installation_id: str, at_ns: int) -> None:
        """Note that the client wrote from this installation at that time."""
        active = self._people.setdefault(client, _Person()).active_at_ns
        active[installation_id] = max(active.get(installation_id, 0), at_ns)

    def destinations(self, client: bytes) -> tuple[Destination, ...]:
        """Return all that is believed, newest version first within an installation."""
        person = self._people.get(client, _Person())
        return tuple(sorted(person.destinations.values(), key=lambda d: (d.installation_id, -d.version, d.server)))

    def by_activity(self, client: bytes, installation_ids: Iterable[str]) -> list[str]:
        """Return installations, most recently active first. Those never seen active come last, in a stable order."""
        active = self._people.get(client, _Person()).active_at_ns
        return sorted(installation_ids, key=lambda installation_id: (-active.get(installation_id, 0), installation_id))

    def installation_ids(self, client: bytes) -> Collection[str]:
        """Return the installations that destinations are known for."""
        return {destination.installation_id for destination in self.destinations(client)}


def _is_key(server: bytes) -> bool:
    try:
        return parse_public_key(server).format() == server
    except BadPublicKey:
        return False
