"""A registering client, sans I/O: one installation of one user, which registers with the servers that may push to it.

Each change is a new version of the whole registration. The client sends it to every server, with a grant for each, and
repeats the same bytes until the server answers. Once a server has accepted it, the contact code names that server.
In anonymous mode the client has a key that is not the user's chat key: see `new_identity`.
Sources: status-go protocol/pushnotificationclient/client.go; 71/STATUS-PUSH-NOTIFICATION-SERVER.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from registrations.messages import RegistrationMessage
from waku_bridge.client.core import Opened, Opener, Subscriptions, topic_key
from waku_bridge.client.events import Accepted, Advertised, Event, GivenUp, Ignored, Reason, Refused, Step
from waku_bridge.client.registration import advertising
from waku_bridge.client.registration.schedules import REGISTRATION, SECOND_NS, Schedule
from waku_bridge.client.state import Address, Preferences, RegistrationState, ServerState, Standing, new_uuid
from waku_bridge.codec import topics
from waku_bridge.codec.crypto.access_tokens import seal_access_token
from waku_bridge.codec.crypto.grants import sign_grant
from waku_bridge.codec.envelope import encode_advertisement, encode_registration
from waku_bridge.codec.keys import Identity, RandomBytes
from waku_bridge.messages import ContactCodeAdvertisement, RegistrationError, RegistrationResponse, WakuMessage

ADVERTISE_EVERY_SECONDS = 6 * 3600.0
# Limit of the request ids for one version and server. A schedule needs fewer, but a caller may retry() for days.
MAX_REQUEST_IDS = 50
# Repeating the same registration cannot help against these errors.
FINAL_ERRORS = frozenset({RegistrationError.MALFORMED_MESSAGE, RegistrationError.UNSUPPORTED_TOKEN_TYPE})


class RegisteringClient:
    """A client that registers under ``identity``. ``state`` is where an earlier run stopped, or `new_state`.

    client = RegisteringClient(identity, new_state(server, random_bytes=os.urandom), os.urandom)
    client.change(Address(TokenType.FIREBASE, device_token))
    step = client.tick(time.time_ns())      # publish step.messages; `Session` does all of this
    step = client.receive(message, time.time_ns())
    keep(client.state)
    """

    def __init__(
        self,
        identity: Identity,
        state: RegistrationState,
        random_bytes: RandomBytes,
        *,
        schedule: Schedule = REGISTRATION,
        advertise_every_seconds: float = ADVERTISE_EVERY_SECONDS,
    ) -> None:
        self.identity = identity
        self.state = state
        self._random_bytes = random_bytes
        self._schedule = schedule
        self._advertise_every_ns = round(advertise_every_seconds * SECOND_NS)
        self._opener = Opener(identity)

    @property
    def installation_id(self) -> str:
        return self.state.installation_id

    @property
    def access_token(self) -> str:
        """Return the access token of the current version. It is empty before the first one."""
        return self.state.access_token

    @property
    def version(self) -> int:
        """Return the last version used."""
        return self.state.version

    @property
    def servers(self) -> tuple[bytes, ...]:
        """Return the servers in use (33 bytes each), without those that are being left."""
        return tuple(slot.server for slot in self.state.servers if not slot.leaving_version)

    @property
    def is_settled(self) -> bool:
        """Return whether no answer is expected: each server has accepted, refused finally, or been given up."""
        return not self.state.raise_at_ns and all(s.standing is not Standing.PENDING for s in self.state.servers)

    def standing(self, server: bytes) -> ServerState | None:
        """Return the state of one server, or None when it is not in use and not being left."""
        return next((slot for slot in self.state.servers if slot.server == server), None)

    def change(self, address: Address, preferences: Preferences | None = None) -> None:
        """Start the next version: registered at this address, with the former preferences unless others are given.

        A new access token is drawn when there was none, and when senders who have the old one must not use it any more:
        see `needs_new_token`. Raises BadPublicKey for a contact that is no key.
        """
        wishes = self.state.preferences if preferences is None else preferences
        token = self.state.access_token
        if not token or needs_new_token(self.state.preferences, wishes):
            token = new_uuid(self._random_bytes)
        registration = RegistrationMessage(
            self.state.installation_id,
            self.state.version + 1,
            token_type=address.token_type,
            device_token=address.device_token,
            app_topic=address.app_topic,
            access_token=token,
            enabled=wishes.enabled,
            allow_from_contacts_only=wishes.contacts_only,
            block_mentions=wishes.block_mentions,
            allowed_key_list=self._sealed(token, wishes),
            blocked_chat_list=wishes.blocked_chats,
            muted_chat_list=wishes.muted_chats,
            allowed_mentions_chat_list=wishes.mention_chats,
        )
        self.state = replace(self.state, access_token=token, preferences=wishes)
        self._start_version(registration)

    def unregister(self) -> None:
        """Start the next version, which unregisters the installation."""
        self._start_version(RegistrationMessage(self.state.installation_id, self.state.version + 1, unregister=True))

    def use(self, servers: Iterable[bytes]) -> None:
        """Use these servers (33 bytes each) from now on. Register with the new ones, and unregister from the others."""
        wanted = tuple(dict.fromkeys(servers))
        gone = set(self.servers) - set(wanted)
        leaving_version = self.state.version + 1 if gone and self.state.current else 0
        kept = {slot.server: slot for slot in self.state.servers if not slot.leaving_version}
        leaving = [
            slot if slot.leaving_version else ServerState(slot.server, leaving_version=leaving_version)
            for slot in self.state.servers
            if slot.server not in wanted and (slot.leaving_version or leaving_version)
        ]
        slots = [kept.get(server) or ServerState(server) for server in wanted]
        version = max(self.state.version, leaving_version)
        self.state = replace(self.state, servers=(*slots, *leaving), version=version)

    def retry(self) -> None:
        """Send the version again, now, to every server that has not accepted it."""
        self._restart(lambda slot: slot.standing is not Standing.ACCEPTED)

    def repeat(self) -> None:
        """Send the version again to every server, also to those that have accepted it."""
        self._restart(lambda _slot: True)

    def advertisement(self) -> ContactCodeAdvertisement | None:
        """Return the contact code as it is now, or None while no server has accepted the current version."""
        accepted = [
            slot.server
            for slot in self.state.servers
            if slot.standing is Standing.ACCEPTED and not slot.leaving_version
        ]
        return advertising.advertisement(self.state.current, accepted, self.identity)

    @property
    def deadline_ns(self) -> int | None:
        if self.state.current is None:
            return None
        due = [slot.due_ns for slot in self.state.servers if slot.standing is Standing.PENDING]
        due += [at_ns for at_ns in (self.state.raise_at_ns, self.state.advertise_at_ns) if at_ns]
        return min(due, default=None)

    def subscriptions(self) -> Subscriptions:
        return {topics.content_topic(topics.partitioned_name(self.identity.pub33)): (self.identity,)}

    def tick(self, now_ns: int) -> Step:
        """Return the messages that are due. Without a version there are none."""
        if self.state.current is None:
            return Step()
        if self.state.raise_at_ns and now_ns >= self.state.raise_at_ns:
            self._raise_version(self.state.current)
        messages: list[WakuMessage] = []
        events: list[Event] = []
        for slot in self.state.servers:
            if slot.standing is Standing.PENDING and now_ns >= slot.due_ns:
                self._send(slot, now_ns, messages, events)
        if self.state.advertise_at_ns and now_ns >= self.state.advertise_at_ns:
            self._advertise(now_ns, messages, events)
        return Step(tuple(messages), tuple(events))

    def receive(self, message: WakuMessage, now_ns: int) -> Step:
        opened = self._opener.open(message, self.subscriptions())
        if isinstance(opened, Ignored):
            return Step(events=(opened,))
        event = self._judge(opened, now_ns)
        if isinstance(event, Reason):
            return Step(events=(Ignored(event, message.content_topic, opened.decoded.author),))
        messages: list[WakuMessage] = []
        events: list[Event] = [event]
        if self.state.advertise_at_ns and now_ns >= self.state.advertise_at_ns:
            self._advertise(now_ns, messages, events)
        return Step(tuple(messages), tuple(events))

    def _judge(self, opened: Opened, now_ns: int) -> Accepted | Refused | Reason:
        """Return the event of an answer, or the reason why it is ignored.

        Only the server that a registration was sealed for can read it, so only that server's answer counts.
        """
        response = opened.decoded.body
        if not isinstance(response, RegistrationResponse):
            return Reason.UNEXPECTED_TYPE
        slot = next((slot for slot in self.state.servers if response.request_id in slot.request_ids), None)
        if slot is None:
            return Reason.UNKNOWN_REQUEST
        if slot.server != opened.decoded.author:
            return Reason.WRONG_SIGNER
        if slot.standing is Standing.ACCEPTED:
            return Reason.ALREADY_SETTLED
        return self._accepted(slot, now_ns) if response.success else self._refused(slot, response.error, now_ns)

    def _accepted(self, slot: ServerState, now_ns: int) -> Accepted:
        """Note that a server accepted a version, also after it refused the same one: answers may come out of order."""
        is_registered = not self._message_for(slot).unregister
        version = self._message_for(slot).version
        if slot.leaving_version:
            self._put(slot, None)
        else:
            self._put(slot, replace(slot, standing=Standing.ACCEPTED, error=RegistrationError.NONE))
            self.state = replace(self.state, advertise_at_ns=now_ns if is_registered else 0)
        if not any(other.error == RegistrationError.VERSION_MISMATCH for other in self.state.servers):
            self.state = replace(self.state, mismatches=0, raise_at_ns=0)
        return Accepted(slot.server, version, is_registered)

    def _refused(self, slot: ServerState, error: int, now_ns: int) -> Refused:
        """Note that a server refused a version.

        A server that has a newer version gets a higher one: our state, or an answer to us, was lost.
        """
        version = self._message_for(slot).version
        known = error or RegistrationError.INTERNAL_ERROR
        is_outdated = (
            error == RegistrationError.VERSION_MISMATCH and self.state.mismatches < self._schedule.max_attempts
        )
        is_final = known in FINAL_ERRORS or (error == RegistrationError.VERSION_MISMATCH and not is_outdated)
        standing = Standing.REFUSED if is_final or is_outdated else Standing.PENDING
        if is_outdated and not self.state.raise_at_ns:
            mismatches = self.state.mismatches + 1
            raise_at_ns = now_ns + self._schedule.delay_ns(mismatches)
            self.state = replace(self.state, mismatches=mismatches, raise_at_ns=raise_at_ns)
        self._put(slot, replace(slot, standing=standing, error=known))
        return Refused(slot.server, version, known, is_final)

    def _send(self, slot: ServerState, now_ns: int, messages: list[WakuMessage], events: list[Event]) -> None:
        if slot.attempts >= self._schedule.max_attempts:
            self._put(slot, replace(slot, standing=Standing.GIVEN_UP))
            events.append(GivenUp(slot.server, self._message_for(slot).version))
            return
        encoded = encode_registration(
            self._granted_to(slot.server, self._message_for(slot)),
            identity=self.identity,
            server=slot.server,
            timestamp_ns=now_ns,
            random_bytes=self._random_bytes,
        )
        attempts = slot.attempts + 1
        with_change = replace(
            slot,
            attempts=attempts,
            due_ns=now_ns + self._schedule.delay_ns(attempts),
            request_ids=(*slot.request_ids, encoded.request_id)[-MAX_REQUEST_IDS:],
        )
        self._put(slot, with_change)
        messages.append(encoded.message)

    def _advertise(self, now_ns: int, messages: list[WakuMessage], events: list[Event]) -> None:
        self.state = replace(self.state, advertise_at_ns=now_ns + self._advertise_every_ns)
        code = self.advertisement()
        if code is None:
            return
        key = topic_key(topics.contact_code_name(self.identity.pub33))
        encoded = encode_advertisement(
            code, identity=self.identity, topic_key=key, timestamp_ns=now_ns, random_bytes=self._random_bytes
        )
        messages.append(encoded.message)
        events.append(Advertised(code.info[0].version, tuple(info.server_public_key for info in code.info)))

    def _message_for(self, slot: ServerState) -> RegistrationMessage:
        """Return the message for a server: the current version, or the unregistration where it is being left."""
        if slot.leaving_version:
            return RegistrationMessage(self.state.installation_id, slot.leaving_version, unregister=True)
        if self.state.current is None:
            raise ValueError("there is no version yet: call change() or unregister() first")
        return self.state.current

    def _granted_to(self, server: bytes, registration: RegistrationMessage) -> RegistrationMessage:
        if registration.unregister:
            return registration
        return replace(registration, grant=sign_grant(self.identity.private_key, server, registration.access_token))

    def _start_version(self, registration: RegistrationMessage) -> None:
        """Start a version, which all servers have to accept again."""
        slots = tuple(slot if slot.leaving_version else ServerState(slot.server) for slot in self.state.servers)
        self.state = replace(
            self.state,
            current=registration,
            version=registration.version,
            servers=slots,
            mismatches=0,
            raise_at_ns=0,
            advertise_at_ns=0,
        )

    def _raise_version(self, current: RegistrationMessage) -> None:
        """Raise the version, in growing steps, because the server does not report the version that it has."""
        mismatches = self.state.mismatches
        version = self.state.version + 2 ** (mismatches - 1)
        self._start_version(replace(current, version=version))
        slots = tuple(
            replace(ServerState(slot.server), leaving_version=version if slot.leaving_version else 0)
            for slot in self.state.servers
        )
        self.state = replace(self.state, servers=slots, mismatches=mismatches)

    def _restart(self, concerns: Callable[[ServerState], bool]) -> None:
        slots = tuple(
            replace(slot, standing=Standing.PENDING, error=RegistrationError.NONE, attempts=0, due_ns=0)
            if concerns(slot)
            else slot
            for slot in self.state.servers
        )
        self.state = replace(self.state, servers=slots)

    def _put(self, slot: ServerState, changed: ServerState | None) -> None:
        slots = (changed if other.server == slot.server else other for other in self.state.servers)
        self.state = replace(self.state, servers=tuple(other for other in slots if other is not None))

    def _sealed(self, token: str, wishes: Preferences) -> tuple[bytes, ...]:
        """Return the sealed tokens. They are made once per version, because a repetition must have the same bytes."""
        if not wishes.contacts_only:
            return ()
        key = self.identity.private_key
        return tuple(seal_access_token(token, key, contact, self._random_bytes) for contact in wishes.contacts)


def needs_new_token(before: Preferences, after: Preferences) -> bool:
    """Return whether somebody has the access token who must not use it any more.

    That is a contact who was removed, or everybody else, once the installation is for contacts only.
    """
    is_closed_now = after.contacts_only and not before.contacts_only
    return is_closed_now or not set(before.contacts) <= set(after.contacts)
