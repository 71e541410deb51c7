"""A registering client, sans I/O: one installation of one user, which registers with the servers that may push to it.

Each change is a new version of the whole registration. The client sends it to every server, with a grant for each, and
repeats the same bytes until the server answers. Once a server has accepted it, the contact code names that server: it
is published on the client's own contact-code topic, which everybody who has its key can read, as in status-go.
In anonymous mode the client has a key that is not the user's chat key: see `new_identity`.
Sources: status-go protocol/pushnotificationclient/client.go; 71/STATUS-PUSH-NOTIFICATION-SERVER.
"""

from collections.abc import Iterable
from dataclasses import replace

from registrations.messages import QueryInfo, RegistrationMessage
from waku_bridge.client.access_tokens import seal_access_token
from waku_bridge.client.core import REGISTRATION, SECOND_NS, Core, Opened, Schedule, Subscriptions, topic_key
from waku_bridge.client.events import Accepted, Advertised, Event, GivenUp, Reason, Refused, Step
from waku_bridge.client.state import Address, Preferences, RegistrationState, ServerState, Standing, new_uuid
from waku_bridge.codec import wire
from waku_bridge.codec.envelope import encode
from waku_bridge.codec.keys import Identity, RandomBytes, sign_grant
from waku_bridge.messages import ContactCodeAdvertisement, RegistrationError, RegistrationResponse

ADVERTISE_EVERY_NS = 6 * 3600 * SECOND_NS
# Limit of the request ids for one version and server. A schedule needs fewer, but a caller may retry() for days.
MAX_REQUEST_IDS = 50
# Repeating the same registration cannot help against these errors.
FINAL_ERRORS = frozenset({RegistrationError.MALFORMED_MESSAGE, RegistrationError.UNSUPPORTED_TOKEN_TYPE})


class RegisteringClient(Core):
    """A client that registers under ``identity``. ``state`` is where an earlier run stopped, or `new_state`."""

    def __init__(
        self,
        identity: Identity,
        state: RegistrationState,
        random_bytes: RandomBytes,
        *,
        schedule: Schedule = REGISTRATION,
    ) -> None:
        super().__init__(identity)
        self.state = state
        self._random_bytes = random_bytes
        self._schedule = schedule

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

    def standing(self, server: bytes) -> ServerState | None:
        """Return the state of one server, or None when it is not in use and not being left."""
        return next((slot for slot in self.state.servers if slot.server == server), None)

    def change(self, address: Address, preferences: Preferences | None = None) -> None:
        """Start the next version: registered at this address, with the former preferences unless others are given.

        A new access token is drawn when there was none, and when somebody who has the old one must not use it any more:
        a contact who was removed, or everybody else, once the installation is for contacts only. Raises BadPublicKey
        for a contact that is no key.
        """
        before, token, key = self.state.preferences, self.state.access_token, self.identity.private_key
        wishes = before if preferences is None else preferences
        is_closed_now = wishes.contacts_only and not before.contacts_only
        if not token or is_closed_now or not set(before.contacts) <= set(wishes.contacts):
            token = new_uuid(self._random_bytes)
        # Sealed once per version, because a repetition must have the same bytes.
        contacts = wishes.contacts if wishes.contacts_only else ()
        sealed = tuple(seal_access_token(token, key, contact, self._random_bytes) for contact in contacts)
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
            allowed_key_list=sealed,
            blocked_chat_list=wishes.blocked_chats,
            muted_chat_list=wishes.muted_chats,
            allowed_mentions_chat_list=wishes.mention_chats,
        )
        self.state.access_token, self.state.preferences = token, wishes
        self._start_version(registration)

    def unregister(self) -> None:
        """Start the next version, which unregisters the installation."""
        self._start_version(RegistrationMessage(self.state.installation_id, self.state.version + 1, unregister=True))

    def use(self, servers: Iterable[bytes]) -> None:
        """Use these servers (33 bytes each) from now on. Register with the new ones, and unregister from the others.

        The latter is a new version, for all servers.
        """
        wanted, current = tuple(dict.fromkeys(servers)), self.state.current
        known = {slot.server: slot for slot in self.state.servers}
        left = [] if current is None else [server for server in known if server not in wanted]
        changed = [slot for slot in known.values() if slot.is_left is not (slot.server in left)]
        self.state.servers = [known.get(server, ServerState(server)) for server in (*wanted, *left)]
        for slot in changed:
            slot.is_left = not slot.is_left
        if changed and current:
            self._start_version(replace(current, version=self.state.version + 1))

    def retry(self) -> None:
        """Send the version again, now, to every server that has not accepted it."""
        for slot in self.state.servers:
            if slot.standing is not Standing.ACCEPTED:
                slot.standing, slot.error, slot.attempts, slot.due_ns = Standing.PENDING, RegistrationError.NONE, 0, 0

    def advertisement(self) -> ContactCodeAdvertisement | None:
        """Return the contact code as it is now, or None while no server has accepted the current version.

        It has an entry for each server that has, with the grant that a reader verifies. The access token is left out
        where it is sealed for contacts. A device with pushes switched off names no server.
        """
        current = self.state.current
        if current is None or not current.enabled:
            return None
        slots = [slot for slot in self.state.servers if slot.standing is Standing.ACCEPTED and self._registers_at(slot)]
        infos = tuple(self._info(current, slot.server) for slot in slots)
        return ContactCodeAdvertisement(infos) if infos else None

    @property
    def deadline_ns(self) -> int | None:
        if self.state.current is None:
            return None
        due = [slot.due_ns for slot in self.state.servers if slot.standing is Standing.PENDING]
        due += [at_ns for at_ns in (self.state.raise_at_ns, self.state.advertise_at_ns) if at_ns]
        return min(due, default=None)

    def subscriptions(self) -> Subscriptions:
        return {wire.content_topic(wire.partitioned_name(self.identity.pub33)): (self.identity,)}

    def tick(self, now_ns: int) -> Step:
        """Return the messages that are due. Without a version there are none."""
        step, current = Step(), self.state.current
        if current is None:
            return step
        if 0 < self.state.raise_at_ns <= now_ns:
            current = self._raise_version(current)
        for slot in self.state.servers:
            if slot.standing is Standing.PENDING and now_ns >= slot.due_ns:
                self._send(current, slot, now_ns, step)
        self._advertise_due(now_ns, step)
        return step

    def _judge(self, opened: Opened, now_ns: int) -> list[Event]:
        """Judge an answer. Only the server that a registration was sealed for can read it: only its answer counts."""
        response = opened.decoded.body
        if not isinstance(response, RegistrationResponse):
            return [opened.ignored(Reason.UNEXPECTED_TYPE)]
        slot = next((slot for slot in self.state.servers if response.request_id in slot.request_ids), None)
        if slot is None:
            return [opened.ignored(Reason.UNKNOWN_REQUEST)]
        if slot.server != opened.decoded.author:
            return [opened.ignored(Reason.WRONG_SIGNER)]
        if slot.standing is Standing.ACCEPTED:
            return [opened.ignored(Reason.ALREADY_SETTLED)]
        return [self._accepted(slot, now_ns) if response.success else self._refused(slot, response.error, now_ns)]

    def _accepted(self, slot: ServerState, now_ns: int) -> Accepted:
        """Note that a server accepted the version, even after it refused it: answers may come out of order."""
        is_registered = self._registers_at(slot)
        slot.standing, slot.error = Standing.ACCEPTED, RegistrationError.NONE
        if slot.is_left:
            self.state.servers.remove(slot)
        else:
            self.state.advertise_at_ns = now_ns if is_registered else 0
        if not any(other.error == RegistrationError.VERSION_MISMATCH for other in self.state.servers):
            self.state.mismatches = self.state.raise_at_ns = 0
        return Accepted(slot.server, self.state.version, is_registered)

    def _refused(self, slot: ServerState, error: int, now_ns: int) -> Refused:
        """Note that a server refused the version.

        A server that has a newer version gets a higher one: our state, or an answer to us, was lost.
        """
        slot.error = error or RegistrationError.INTERNAL_ERROR
        is_final, is_outdated = slot.error in FINAL_ERRORS, slot.error == RegistrationError.VERSION_MISMATCH
        if is_outdated and self.state.mismatches >= self._schedule.max_attempts:
            is_final = True
        elif is_outdated and not self.state.raise_at_ns:
            self.state.mismatches += 1
            self.state.raise_at_ns = now_ns + self._schedule.delay_ns(self.state.mismatches)
        slot.standing = Standing.REFUSED if is_final or is_outdated else Standing.PENDING
        return Refused(slot.server, self.state.version, slot.error, is_final)

    def _send(self, current: RegistrationMessage, slot: ServerState, now_ns: int, step: Step) -> None:
        if slot.attempts >= self._schedule.max_attempts:
            slot.standing = Standing.GIVEN_UP
            step.events.append(GivenUp(slot.server, self.state.version))
            return
        if self._registers_at(slot):
            grant = sign_grant(self.identity.private_key, slot.server, current.access_token)
            registration = replace(current, grant=grant)
        else:
            registration = RegistrationMessage(self.state.installation_id, self.state.version, unregister=True)
        encoded = encode(
            registration,
            signer=self.identity,
            recipient=slot.server,
            timestamp_ns=now_ns,
            random_bytes=self._random_bytes,
        )
        slot.attempts += 1
        slot.due_ns = now_ns + self._schedule.delay_ns(slot.attempts)
        slot.request_ids = [*slot.request_ids, encoded.request_id][-MAX_REQUEST_IDS:]
        step.messages.append(encoded.message)

    def _registers_at(self, slot: ServerState) -> bool:
        """Return whether the current version registers at this server, and does not unregister."""
        return self.state.current is not None and not self.state.current.unregister and not slot.is_left

    def _advertise_due(self, now_ns: int, step: Step) -> None:
        if not 0 < self.state.advertise_at_ns <= now_ns:
            return
        self.state.advertise_at_ns = now_ns + ADVERTISE_EVERY_NS
        code = self.advertisement()
        if code is None:
            return
        key = topic_key(wire.contact_code_name(self.identity.pub33))
        encoded = encode(
            code, signer=self.identity, topic_key=key, timestamp_ns=now_ns, random_bytes=self._random_bytes
        )
        step.messages.append(encoded.message)
        step.events.append(Advertised(self.state.version, tuple(info.server_public_key for info in code.info)))

    def _info(self, current: RegistrationMessage, server: bytes) -> QueryInfo:
        return QueryInfo(
            public_key_hash=self.identity.key_hash,
            installation_id=current.installation_id,
            version=current.version,
            grant=sign_grant(self.identity.private_key, server, current.access_token),
            access_token="" if current.allow_from_contacts_only else current.access_token,
            allowed_key_list=current.allowed_key_list,
            server_public_key=server,
        )

    def _start_version(self, registration: RegistrationMessage) -> None:
        """Start a version, which all servers have to accept again."""
        self.state.current, self.state.version = registration, registration.version
        self.state.servers = [ServerState(slot.server, slot.is_left) for slot in self.state.servers]
        self.state.mismatches = self.state.raise_at_ns = self.state.advertise_at_ns = 0

    def _raise_version(self, current: RegistrationMessage) -> RegistrationMessage:
        """Raise the version, in growing steps, because the server does not report the version that it has."""
        mismatches = self.state.mismatches
        raised = replace(current, version=self.state.version + 2 ** (mismatches - 1))
        self._start_version(raised)
        self.state.mismatches = mismatches
        return raised
