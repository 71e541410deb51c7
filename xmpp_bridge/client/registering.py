"""Requests of an app: commands to the push service (XEP-0050), and then to its own server, to enable or disable pushes.

A core without I/O: it builds the requests and reads the answers to commands.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from xml.etree.ElementTree import Element

from xmpp_bridge.client.elements import (
    COMMANDS,
    FORMS,
    PUBLISH_OPTIONS,
    PUSH,
    Refused,
    element,
    iq,
    refusal_of,
    submitted,
    values_of,
)


class Platform(StrEnum):
    """The push service of the device's vendor, as the names of the commands spell it."""

    APNS = "apns"
    FCM = "fcm"


@dataclass(frozen=True, slots=True)
class Device:
    """The facts of an app about its device.

    ``environment`` and ``voip_token`` are for Apple's devices only. ``app`` is required where a service serves several.
    """

    platform: Platform
    token: str = field(repr=False)
    device_id: str = field(repr=False)
    app: str = ""
    environment: str = ""
    voip_token: str = field(default="", repr=False)

    def fields(self) -> dict[str, str]:
        """Return the fields of the registration's form, without empty ones."""
        own = {"token": self.token, "device-id": self.device_id, "app": self.app}
        of_apple = {"environment": self.environment, "voip-token": self.voip_token}
        return {name: value for name, value in (own | of_apple).items() if value}


@dataclass(frozen=True, slots=True)
class Registered:
    """The values that the app passes to its user's server.

    ``service`` is the JID of the push service. ``client`` names the route in Push 2.0, ``node`` and ``secret`` name it
    in XEP-0357.
    """

    service: str
    client: str = field(repr=False)
    node: str = field(repr=False)
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unregistered:
    """The service has forgotten the device."""


@dataclass(frozen=True, slots=True)
class FormAsked:
    """The service sent a form to fill in: the names of its fields, and the session that it belongs to."""

    fields: tuple[str, ...]
    session_id: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The service confirms that it has cancelled the command."""


Answer = Registered | Unregistered | FormAsked | Cancelled | Refused


def register(service: str, device: Device, identifier: str, *, session_id: str = "") -> Element:
    """Return the request that registers a device or its new token. In a session it is the second step."""
    form = submitted(device.fields())
    return _command(service, f"register-push-{device.platform}", identifier, form, session_id=session_id)


def unregister(service: str, device: Device, identifier: str) -> Element:
    """Return the request that makes the service forget a device."""
    fields = {name: value for name, value in device.fields().items() if name in {"device-id", "app"}}
    return _command(service, f"unregister-push-{device.platform}", identifier, submitted(fields))


def ask_for_form(service: str, platform: Platform, identifier: str) -> Element:
    """Return the request for the command's form: the first step of a generic client."""
    return _command(service, f"register-push-{platform}", identifier)


def cancel(service: str, platform: Platform, identifier: str, session_id: str) -> Element:
    """Return the request that ends a command after its first step."""
    return _command(service, f"register-push-{platform}", identifier, session_id=session_id, action="cancel")


def read_answer(answer: Element) -> Answer:
    """Return the service's answer to a command."""
    if answer.get("type") == "error":
        return refusal_of(answer)
    command = answer.find(f"{{{COMMANDS}}}command")
    if command is None:
        return Refused("", "", "no command in the answer")
    form = command.find(f"{{{FORMS}}}x")
    values = values_of(form)
    match command.get("status"):
        case "executing":
            return FormAsked(tuple(values), command.get("sessionid", ""))
        case "canceled":
            return Cancelled()
        case _ if command.get("node", "").startswith("unregister-"):
            return Unregistered()
    return Registered(values.get("jid", ""), values.get("client", ""), values.get("node", ""), values.get("secret", ""))


def enable_xep0357(service: str, node: str, secret: str, identifier: str) -> Element:
    """Return the request of XEP-0357, to the user's own account, that enables pushes to a node."""
    options = submitted({"secret": secret}, PUBLISH_OPTIONS)
    return iq("set", "", identifier, element("enable", PUSH, {"jid": service, "node": node}, options))


def _command(
    service: str, node: str, identifier: str, *form: Element, session_id: str = "", action: str = "execute"
) -> Element:
    attributes = {"node": node, "action": action} | ({"sessionid": session_id} if session_id else {})
    return iq("set", service, identifier, element("command", COMMANDS, attributes, *form))
