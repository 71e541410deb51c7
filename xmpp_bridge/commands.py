"""Commands with which apps register their devices: their forms, and the reasons to refuse them. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from registrations.messages import DeviceAddress, Environment, TokenType
from xmpp_bridge.codec.answers import FormField
from xmpp_bridge.messages import Errors, StanzaError

MAX_DEVICE_ID_CHARACTERS = 255
APN_TOKEN = re.compile(r"(?:[0-9a-fA-F]{2}){32,100}")
FIREBASE_TOKEN = re.compile(r"[A-Za-z0-9_:\-]{32,4096}")


class Action(NamedTuple):
    """A command that we serve."""

    name: str
    token_type: TokenType
    is_registration: bool


ACTIONS: Mapping[str, Action] = {
    "register-push-apns": Action("Register for pushes (Apple)", TokenType.APN, is_registration=True),
    "register-push-fcm": Action("Register for pushes (Firebase)", TokenType.FIREBASE, is_registration=True),
    "unregister-push-apns": Action("Unregister from pushes (Apple)", TokenType.APN, is_registration=False),
    "unregister-push-fcm": Action("Unregister from pushes (Firebase)", TokenType.FIREBASE, is_registration=False),
}


# The outcome of a refused command, by the error that answers it.
OUTCOMES: Mapping[StanzaError, str] = {
    Errors.NOT_FOUND: "not_found",
    Errors.FORBIDDEN: "forbidden",  # the sender is no account, or its domain is not served
    Errors.BUSY: "busy",  # beyond a limit
    Errors.BAD_REQUEST: "bad_request",
    Errors.TROUBLE: "not_stored",  # the database is away
}
# The actions of a command (XEP-0050) that request its execution.
PHASES = frozenset({"execute", "next", "complete"})


class CommandRefused(Exception):  # noqa: N818 - says what happened
    """The command is refused. The hint goes to the app as the text of the error, and never quotes a value."""

    def __init__(self, error: StanzaError, hint: str = "") -> None:
        self.outcome = OUTCOMES[error]
        super().__init__(self.outcome)
        self.error = replace(error, text=hint)


def read_device_id(fields: Mapping[str, str]) -> str:
    """Return the id that an app gives its device, by the present or the former name of the field.

    Raises CommandRefused.
    """
    device_id = fields.get("device-id") or fields.get("android-id") or ""
    if not 0 < len(device_id) <= MAX_DEVICE_ID_CHARACTERS:
        raise CommandRefused(Errors.BAD_REQUEST, f"device-id: 1 to {MAX_DEVICE_ID_CHARACTERS} characters")
    return device_id


def read_address(action: Action, fields: Mapping[str, str]) -> DeviceAddress:
    """Return the address in a form.

    Raises CommandRefused if a token is missing or invalid.
    """
    token = fields.get("token", "")
    if action.token_type != TokenType.APN:
        if not FIREBASE_TOKEN.fullmatch(token):
            raise CommandRefused(Errors.BAD_REQUEST, "token: not a registration token of Firebase")
        return DeviceAddress(token)
    call_token, environment = fields.get("voip-token", ""), fields.get("environment") or Environment.PRODUCTION.value
    if not APN_TOKEN.fullmatch(token):
        raise CommandRefused(Errors.BAD_REQUEST, "token: not a device token of Apple in hexadecimal digits")
    if call_token and not APN_TOKEN.fullmatch(call_token):
        raise CommandRefused(Errors.BAD_REQUEST, "voip-token: not a device token of Apple in hexadecimal digits")
    if environment not in list(Environment):
        raise CommandRefused(Errors.BAD_REQUEST, "environment: production or development")
    return DeviceAddress(token.lower(), call_token.lower(), environment)


def form_fields(action: Action, apps: Iterable[str]) -> list[FormField]:
    """Return the fields of a command's form. The form offers a choice of apps only if there are several."""
    slugs = tuple(apps)
    fields = [FormField("device-id", "Id of the device, the same each time", is_required=True)]
    if action.is_registration:
        fields.insert(0, FormField("token", "Device token", is_required=True))
    if action.is_registration and action.token_type == TokenType.APN:
        fields += [
            FormField("voip-token", "Device token for calls"),
            FormField("environment", "Environment", "list-single", options=tuple(each.value for each in Environment)),
        ]
    if len(slugs) > 1:
        fields.append(FormField("app", "App", "list-single", is_required=True, options=slugs))
    return fields
