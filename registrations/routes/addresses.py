"""The address of a device at Apple or Google, as its route keeps it.

Most devices have one token, which is stored as it is. A device that also takes calls, or whose app is built for Apple's
sandbox, has a document in its place; no token begins like one. Pure.
"""

import json
from dataclasses import dataclass, field
from enum import StrEnum

_FIELDS = {"token", "call_token", "environment"}


class Environment(StrEnum):
    """Which of Apple's servers knows the token."""

    PRODUCTION = "production"
    DEVELOPMENT = "development"


@dataclass(frozen=True, slots=True)
class DeviceAddress:
    """One device. ``call_token`` is the token that Apple gives out for calls; ``environment`` is empty where the
    gateway's own setting is meant.
    """

    token: str = field(repr=False)
    call_token: str = field(default="", repr=False)
    environment: str = ""

    def encode(self) -> bytes:
        """Return the address as it is stored."""
        if not self.call_token and not self.environment:
            return self.token.encode()
        fields = {"token": self.token, "call_token": self.call_token, "environment": self.environment}
        return json.dumps({name: value for name, value in fields.items() if value}, sort_keys=True).encode()


def read_address(address: bytes) -> DeviceAddress:
    """Return the device that an address names.

    Raises ValueError for bytes that are no address of a device; UnicodeDecodeError is one.
    """
    text = address.decode()
    if not text.startswith("{"):
        return DeviceAddress(text)
    fields = json.loads(text)
    if not (
        fields.keys() <= _FIELDS and fields.get("token") and all(isinstance(each, str) for each in fields.values())
    ):
        raise ValueError("no address of a device")
    return DeviceAddress(**fields)
