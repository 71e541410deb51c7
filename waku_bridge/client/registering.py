"""A registering client, sans I/O: one installation of one user, and what it tells the servers that may push to it.

Each change is a new version of the whole registration; a version is said to a server as often as it takes until it
answers, in the same words.
Sources: status-go protocol/pushnotificationclient/client.go; 71/STATUS-PUSH-NOTIFICATION-SERVER.
"""

from dataclasses import dataclass, field, replace

from registrations.messages import RegistrationMessage
from waku_bridge.codec.access_tokens import seal_access_token
from waku_bridge.codec.envelope import Encoded, encode_registration
from waku_bridge.codec.grants import sign_grant
from waku_bridge.codec.keys import Identity
from waku_bridge.codec.randomness import RandomBytes
from waku_bridge.messages import Decoded, RegistrationError, RegistrationResponse


@dataclass(frozen=True, slots=True)
class Address:
    """Where Apple (``TokenType.APN``, with the app's ``apn_topic``) or Google (``FIREBASE``) finds the device."""

    token_type: int
    device_token: str = field(repr=False)
    apn_topic: str = ""


@dataclass(frozen=True, slots=True)
class Preferences:
    """Who may wake the device, and for what. Chats are their SHAKE-256 hashes (64 bytes).

    With ``contacts_only`` the access token is handed out encrypted for each key in ``contacts`` (33 bytes each), and
    nobody else can ask for a push.
    """

    enabled: bool = True
    contacts_only: bool = False
    contacts: tuple[bytes, ...] = ()
    block_mentions: bool = False
    blocked_chats: tuple[bytes, ...] = ()
    muted_chats: tuple[bytes, ...] = ()
    mention_chats: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """A server's verdict on one transmission. ``error`` is RegistrationError.NONE exactly when it was accepted."""

    request_id: bytes
    server: bytes
    version: int
    error: int

    @property
    def is_accepted(self) -> bool:
        return self.error == RegistrationError.NONE


class RegisteringClient:
    """``version`` is the last one this installation has used: servers refuse whatever does not exceed it.

    ``access_token`` (UUID text) is what senders must present. Nothing outlives the object: whoever wants to change the
    registration later keeps ``version``.
    """

    def __init__(
        self,
        identity: Identity,
        installation_id: str,
        access_token: str,
        random_bytes: RandomBytes,
        *,
        version: int = 0,
    ) -> None:
        self.identity = identity
        self.installation_id = installation_id
        self.access_token = access_token
        self.version = version
        self._random_bytes = random_bytes
        self._current: RegistrationMessage | None = None
        self._asked: dict[bytes, bytes] = {}  # server by request id, for the current version

    @property
    def receiver(self) -> Identity:
        return self.identity

    def change(self, address: Address, preferences: Preferences | None = None) -> None:
        """Start the next version: registered at this address. Raises BadPublicKey for a contact that is no key."""
        wishes = preferences or Preferences()
        self._start_version(
            RegistrationMessage(
                self.installation_id,
                self.version + 1,
                token_type=address.token_type,
                device_token=address.device_token,
                apn_topic=address.apn_topic,
                access_token=self.access_token,
                enabled=wishes.enabled,
                allow_from_contacts_only=wishes.contacts_only,
                block_mentions=wishes.block_mentions,
                allowed_key_list=self._sealed_tokens(wishes),
                blocked_chat_list=wishes.blocked_chats,
                muted_chat_list=wishes.muted_chats,
                allowed_mentions_chat_list=wishes.mention_chats,
            )
        )

    def unregister(self) -> None:
        """Start the next version: not registered any more."""
        self._start_version(RegistrationMessage(self.installation_id, self.version + 1, unregister=True))

    def encode_for(self, server: bytes, *, timestamp_ns: int) -> Encoded:
        """The current version for one server. Called again, it says the same once more in another envelope.

        Raises ValueError before the first version.
        """
        if self._current is None:
            raise ValueError("nothing to say yet: change() or unregister() comes first")
        encoded = encode_registration(
            self._granted_to(server, self._current),
            identity=self.identity,
            server=server,
            timestamp_ns=timestamp_ns,
            random_bytes=self._random_bytes,
        )
        self._asked[encoded.request_id] = server
        return encoded

    def receive(self, message: Decoded) -> Answered | None:
        """The verdict on a transmission of the current version, from the server it was sent to."""
        response = message.body
        if not isinstance(response, RegistrationResponse) or self._asked.get(response.request_id) != message.author:
            return None
        return Answered(response.request_id, message.author, self.version, _error(response))

    def _start_version(self, registration: RegistrationMessage) -> None:
        """What servers say to an older version says nothing about this one."""
        self._current, self.version = registration, registration.version
        self._asked.clear()

    def _sealed_tokens(self, wishes: Preferences) -> tuple[bytes, ...]:
        """Sealed once per version: a repeat must be the same to the byte, or servers take it for another one."""
        if not wishes.contacts_only:
            return ()
        key = self.identity.private_key
        return tuple(
            seal_access_token(self.access_token, key, contact, self._random_bytes) for contact in wishes.contacts
        )

    def _granted_to(self, server: bytes, registration: RegistrationMessage) -> RegistrationMessage:
        if registration.unregister:
            return registration
        return replace(registration, grant=sign_grant(self.identity.private_key, server, self.access_token))


def _error(response: RegistrationResponse) -> int:
    """A refusal without a reason is still a refusal."""
    if response.success:
        return RegistrationError.NONE
    return response.error or RegistrationError.INTERNAL_ERROR
