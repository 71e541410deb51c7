"""Endpoints of XMPP in the API: registering devices. See docs/api.md.

Operators register devices here whose app cannot send the ad-hoc commands itself. Each such endpoint carries out the
command, so its answer is the one that the app would have received. The answer holds the device's secrets. No other
answer and no log holds them, or the account.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

import structlog
from django.conf import settings
from django.db import Error, transaction
from django.urls import path
from django.utils.cache import add_never_cache_headers
from drf_spectacular.utils import OpenApiResponse
from rest_framework import generics, serializers, status
from rest_framework.exceptions import APIException, NotFound, PermissionDenied, ValidationError
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response

from kit.db.clock import database_now
from kit.db.reasons import is_conflict
from pushserver.console.toolkit.rest import Guarded, Problem, describe
from registrations.messages import Environment
from xmpp_bridge.commands import ACTIONS, MAX_DEVICE_ID_CHARACTERS, CommandRefused
from xmpp_bridge.devices import Done, carry_out
from xmpp_bridge.messages import MAX_JID_CHARACTERS, Errors, parse_jid
from xmpp_bridge.rules import Domains

log = structlog.get_logger(__name__)
MAX_TOKEN_CHARACTERS = 4096
MAX_SLUG_CHARACTERS = 63
# Fields of the API whose names differ from those of the command's form.
NAMES = {"device_id": "device-id", "voip_token": "voip-token"}
NO_ACCOUNT = "account: the address of an account, without a resource"
# Another process may register the same device at the same moment. It has committed by the time that our insert fails.
ATTEMPTS = 3
NO_SUCH_APP = "No app of this name has devices on this platform."
NO_SUCH_DEVICE = "No such device of this account is registered in the app, or there is no such app."
NO_COMPONENT = "No XMPP component is configured (XMPP_COMPONENT_JID)."
TOO_MANY_DEVICES = "A limit of devices is reached: ten of an account in an app, or XMPP_MAX_DEVICES in all."
NOT_SERVED = "This domain is not served (XMPP_DENIED_DOMAINS, XMPP_ALLOWED_DOMAINS)."


class Conflict(APIException):
    status_code = status.HTTP_409_CONFLICT


PROBLEMS: dict[Any, Any] = {
    (code, "application/problem+json"): OpenApiResponse(Problem, description)
    for code, description in {
        409: "A limit of devices is reached, or no XMPP component is configured.",
        415: "The body is not JSON.",
    }.items()
}


class DeviceAsked(serializers.Serializer[Any]):
    """The account and the device that the command is about."""

    platform = serializers.ChoiceField(choices=["apns", "fcm"])
    account = serializers.CharField(
        max_length=MAX_JID_CHARACTERS, help_text="The user's address, such as juliet@example.org. It is not stored."
    )
    device_id = serializers.CharField(
        max_length=MAX_DEVICE_ID_CHARACTERS,
        trim_whitespace=False,
        help_text="The app's own id of the device, the same in each request. It is not stored.",
    )
    app = serializers.CharField(
        max_length=MAX_SLUG_CHARACTERS, required=False, help_text="The app's slug. Required if there are several apps."
    )


class RegistrationAsked(DeviceAsked):
    """A device to be registered, or to be registered again, with its address at Apple or Google."""

    token = serializers.CharField(
        max_length=MAX_TOKEN_CHARACTERS,
        help_text="Apple's device token in hexadecimal digits, or Firebase's registration token.",
    )
    voip_token = serializers.CharField(
        max_length=MAX_TOKEN_CHARACTERS, required=False, help_text="Apple: the token of PushKit."
    )
    environment = serializers.ChoiceField(
        choices=[each.value for each in Environment], required=False, help_text="Apple: production by default."
    )


class UnregisteredAnswer(serializers.Serializer[Any]):
    id = serializers.UUIDField(help_text="The device's id, as in the console.")
    outcome = serializers.ChoiceField(choices=["unregistered"])


class RegisteredAnswer(serializers.Serializer[Any]):
    """The values for the user's server: jid and client for Push 2.0, or jid, node and secret for XEP-0357."""

    id = serializers.UUIDField(help_text="The device's id, as in the console.")
    outcome = serializers.ChoiceField(choices=["registered", "refreshed"])
    jid = serializers.CharField()
    client = serializers.CharField()
    node = serializers.CharField()
    secret = serializers.CharField()


class Commanding(Guarded, generics.GenericAPIView[Any]):
    """A view that carries out one command."""

    http_method_names = ("post",)
    parser_classes = (JSONParser,)
    scope = "devices"
    verb: ClassVar[str]
    not_found: ClassVar[str]

    def carry_out(self, request: Request) -> Response:
        """Carry out the command and record the API token that requested it, in one transaction."""
        if not settings.XMPP_COMPONENT_JID:
            raise Conflict(NO_COMPONENT)
        asked = self.get_serializer(data=request.data)
        asked.is_valid(raise_exception=True)
        fields = {NAMES.get(name, name): value for name, value in asked.validated_data.items()}
        node = f"{self.verb}-push-{fields.pop('platform')}"
        try:
            with transaction.atomic():
                done = command(node, fields.pop("account"), fields, now=database_now())
                _note(request, done)
        except CommandRefused as refused:
            raise self.problem(refused) from None
        response = Response({"id": done.device_id, "outcome": done.outcome, **done.values})
        add_never_cache_headers(response)
        return response

    def problem(self, refused: CommandRefused) -> APIException:
        """Return the HTTP error that answers a refused command."""
        match refused.outcome:
            case "not_found":
                return NotFound(self.not_found)
            case "forbidden":
                return PermissionDenied(NOT_SERVED)
            case "busy":
                return Conflict(TOO_MANY_DEVICES)
        name, _, hint = refused.error.text.partition(": ")
        own_names = {theirs: ours for ours, theirs in NAMES.items()}
        return ValidationError({own_names.get(name, name): [hint]})


def command(node: str, account: str, fields: Mapping[str, str], *, now: datetime) -> Done:
    """Carry out a command for an account as if its app had sent it, and return its result.

    ``node`` is a key of `commands.ACTIONS`. The account is not verified: the operator is responsible for it. Of the
    limits, only those of devices apply: of one account, and in all.

    Raises CommandRefused.
    """
    owner = parse_jid(account)
    if owner is None or not owner.local or owner.resource:
        raise CommandRefused(Errors.BAD_REQUEST, NO_ACCOUNT)
    if not Domains(settings.XMPP_DENIED_DOMAINS, settings.XMPP_ALLOWED_DOMAINS).serve(owner.domain):
        raise CommandRefused(Errors.FORBIDDEN)
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            with transaction.atomic():
                return carry_out(ACTIONS[node], owner, fields, domain=settings.XMPP_COMPONENT_JID, now=now)
        except Error as error:
            if not attempts_left or not is_conflict(error):
                raise
            log.info("command_collided")
    raise AssertionError  # the last attempt returned or raised


def _note(request: Request, done: Done) -> None:
    outcome, device = done.outcome, str(done.device_id)
    token: Any = request.auth
    token.note_opened(f"api.xmpp_device.{outcome}", [device], at=database_now())
    log.info("device_commanded", outcome=outcome, device_id=device, api_token_id=token.pk)


def _describe(answer: Any, operation_id: str) -> Any:
    return describe(answer, operation_id=operation_id, more=PROBLEMS)


class Register(Commanding):
    """Register a device, or register it again with its new token. The answer is the same each time."""

    verb, not_found = "register", NO_SUCH_APP
    serializer_class = RegistrationAsked

    @_describe(RegisteredAnswer, "xmpp_devices_register")  # type: ignore[untyped-decorator]
    def post(self, request: Request) -> Response:
        return self.carry_out(request)


class Unregister(Commanding):
    """Unregister a device. Registering it again makes a new device."""

    verb, not_found = "unregister", NO_SUCH_DEVICE
    serializer_class = DeviceAsked

    @_describe(UnregisteredAnswer, "xmpp_devices_unregister")  # type: ignore[untyped-decorator]
    def post(self, request: Request) -> Response:
        return self.carry_out(request)


urlpatterns = [
    path("xmpp-devices/register/", Register.as_view(), name="register_device"),
    path("xmpp-devices/unregister/", Unregister.as_view(), name="unregister_device"),
]
