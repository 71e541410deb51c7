"""The address of a device at Apple or Google, in the format that its route stores. The module does no I/O.

Most devices have one token, which is stored unchanged. A device that also receives calls, or whose app is built for
Apple's sandbox, has a JSON document instead. No token begins with `{`.
"""

import json
from dataclasses import dataclass, field
from enum import StrEnum

_FIELDS = {"token", "call_token", "environment"}


class Environment(StrEnum):
    """The environment of Apple to which a token belongs."""

    PRODUCTION = "production"
    DEVELOPMENT = "development"


@dataclass(frozen=True, slots=True)
class DeviceAddress:
    """One device. ``call_token`` is Apple's token for calls. An empty ``environment`` means the gateway's setting."""

    token: str = field(repr=False)
    call_token: str = field(default="", repr=False)
    environment: str = ""

    def encode(self) -> bytes:
        """Return the address in the format that its route stores."""
        if not self.call_token and not self.environment:
            return self.token.encode()
        fields = {"token": self.token, "call_token": self.call_token, "environment": self.environment}
        return json.dumps({name: value for name, value in fields.items() if value}, sort_keys=True).encode()


def read_address(address: bytes) -> DeviceAddress:
    """Return the device of a stored address.

    Raises ValueError (or its subclass UnicodeDecodeError) for bytes that are no address of a device.
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
