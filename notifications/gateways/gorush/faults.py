"""What gorush must not be given, because it would silently drop it or do something else with it. Pure."""

import re

from notifications.gateways.gorush.platforms import NUMBERS
from notifications.messages import Grade, Outcome, Push, Result
from registrations.addresses import DeviceAddress, read_address
from registrations.messages import TokenType

MAX_COLLAPSE_ID_BYTES = 64  # Apple's limit
# gorush writes Apple's tokens into a URL as they are: "x#1" would reach the device of "x", and "a%zz" would reach none.
_IN_A_URL = re.compile(r"[A-Za-z0-9._~:@!$&'()*+,;=-]+")
# What each fault makes of the push. A token that can never be sent is treated as a dead one.
FAULTS = {
    "unknown_platform": Outcome.PAYLOAD,
    "no_device_token": Outcome.DEAD,
    "unsendable_token": Outcome.DEAD,
    "collapse_id_too_long": Outcome.PAYLOAD,
}


def find_fault(push: Push) -> Result | None:
    """Return what is wrong with a push that must not even be sent, or None."""
    code = _fault(push)
    return Result(FAULTS[code], code, is_untried=True) if code else None


def _fault(push: Push) -> str:
    if push.channel.token_type not in NUMBERS:
        return "unknown_platform"
    if not push.address:
        return "no_device_token"
    if not _is_sendable(push):
        return "unsendable_token"
    return "" if len(push.collapse_id.encode()) <= MAX_COLLAPSE_ID_BYTES else "collapse_id_too_long"


def _is_sendable(push: Push) -> bool:
    try:
        token = device_token(push)
    except ValueError:
        return False
    return push.channel.token_type != TokenType.APN or _IN_A_URL.fullmatch(token) is not None


def device_token(push: Push) -> str:
    """Return the token that a push goes to: that for calls, or the device's usual one.

    Raises ValueError for an address that is not one of gorush's.
    """
    address = read_address(push.address)
    return address.call_token if rings(push, address) else address.token


def rings(push: Push, address: DeviceAddress) -> bool:
    """Return whether a push goes to the token for calls, as one that the device rings for. One that was refused there
    goes to the usual token.
    """
    return push.grade == Grade.VOIP and bool(address.call_token) and not push.is_payload_dropped
