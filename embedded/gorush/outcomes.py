"""The outcome of a push, decided by the fate that begins its device token. The module is pure.

A push is delivered, unless its token begins with one of these:

<refusal>-…        is refused, with the error of that name (`Refusal`), in small letters
flaky<N>-…         is refused like busy N times per notification (token and collapse id), then delivered
slow<ms>-REST      takes that long, then goes like the token REST

Tokens of Apple are hex. The fate may be written in hex too, so that servers accept the whole as a token.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from urllib.parse import quote

APPLE_URL = "https://api.sandbox.push.apple.com/3/device/"
GOOGLE_URL = "https://fcm.googleapis.com/v1/projects/status-im/messages:send"
PAGE = "<html><body>502 Bad Gateway</body></html>"
READ_RESET = "read tcp 127.0.0.1:50000->127.0.0.1:443: read: connection reset by peer"
FIREBASE_SENDS = 5
SHOWN = "$&+,/:;=@!'()*~?#%"  # Go percent-encodes any other character of a token in the URL of its errors


class Platform(IntEnum):
    """gorush's numbers."""

    IOS = 1
    ANDROID = 2


class Refusal(Enum):
    """An error of Apple or Google: the texts that gorush passes on for iOS and for Android."""

    # The device is gone, or the token is wrong.
    DEAD = ("Unregistered", "Requested entity was not found.")
    EXPIRED = ("ExpiredToken", "NotRegistered")
    UNINSTALLED = ("Unregistered", "The app has been uninstalled or unregistered from the device.")
    BAD = ("BadDeviceToken", "The registration token is not a valid FCM registration token")
    INVALID = ("BadDeviceToken", "Invalid registration token provided.")
    WRONG = ("DeviceTokenNotForTopic", "SenderId mismatch")
    # The operator must act.
    CONFIG = ("InvalidProviderToken", "Permission 'cloudmessaging.messages.create' denied on resource")
    TOPIC = ("TopicDisallowed", "Auth error from APNS or Web Push Service")
    # The payload is wrong.
    BIG = ("PayloadTooLarge", "Android message is too big")
    ARGUMENT = ("BadPriority", "Request contains an invalid argument.")
    # For now. The Firebase SDK tries five times before an outage fails.
    QUOTA = ("TooManyRequests", "Quota exceeded for quota metric 'Send requests'")
    BUSY = ("ServiceUnavailable", "The service is currently unavailable.")
    OUTAGE = ("ServiceUnavailable ", "The service is currently unavailable. ")  # another member, not an alias of BUSY
    INTERNAL = ("InternalServerError", "Internal error encountered.")
    # Unknown errors. One has the token in it.
    NEW = ("SomethingNew", "Something new.")
    NAMING = ("Nobody likes {token} here", "Nobody likes {token} here.")
    # A proxy's page.
    HTML = (
        "invalid character '<' looking for beginning of value",
        f"unexpected http response with status: 502\n{PAGE}",
    )
    # Delivered, but the connection was lost or reset before the answer. On Android the Firebase SDK tries again, and it
    # is delivered five times. The error of a reset is that of a connection that failed before anything was sent.
    LOST = (
        f'Post "{APPLE_URL}{{token}}": unexpected EOF',
        f'unknown error while making an http call: Post "{GOOGLE_URL}": unexpected EOF',
    )
    RESET = (
        f'Post "{APPLE_URL}{{token}}": unexpected EOF',
        f'failed to establish a connection: Post "{GOOGLE_URL}": {READ_RESET}',
    )

    def text(self, platform: Platform, token: str) -> str:
        ios, android = self.value
        return (ios if platform is Platform.IOS else android).strip().replace("{token}", quote(token, safe=SHOWN))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one push, which reaches Apple or Google ``sends`` times. ``error`` is their refusal.

    The Firebase SDK repeats some failures, without a setting for it.
    """

    error: str = ""
    refusal: Refusal | None = None
    sends: int = 1
    delay_ms: int = 0

    @property
    def upstream_error(self) -> str:
        """Return the answer of Apple or Google. A push whose answer got lost was accepted."""
        return "" if self.refusal in (Refusal.LOST, Refusal.RESET) else self.error


REPEATED_BY_FIREBASE = (Refusal.OUTAGE, Refusal.LOST, Refusal.RESET)
REFUSALS: Mapping[str, Refusal] = {f"{refusal.name.lower()}-": refusal for refusal in Refusal}
FLAKY = re.compile(r"flaky(\d{1,3})-")
SLOW = re.compile(r"slow(\d{1,6})-")
# `[a-z0-9]+-` once or several times, in hex.
HEX_PREFIX = re.compile(r"((?:(?:3[0-9]|6[1-9a-f]|7[0-9a])+2d)+)[0-9a-f]{64}")


def decide(token: str, platform: Platform, earlier_tries: int) -> Outcome:
    """Decide the outcome of one push. `earlier_tries` counts the pushes of the same notification to this token."""
    in_hex, delay_ms = HEX_PREFIX.fullmatch(token), 0
    fate = bytes.fromhex(in_hex[1]).decode() if in_hex else token
    while slow := SLOW.match(fate):
        fate, delay_ms = fate[slow.end() :], delay_ms + int(slow[1])
    prefix = fate[: fate.find("-") + 1]
    if flaky := FLAKY.fullmatch(prefix):
        prefix = "busy-" if earlier_tries < int(flaky[1]) else ""
    refusal = REFUSALS.get(prefix)
    return replace(refuse(refusal, platform, token) if refusal else Outcome(), delay_ms=delay_ms)


def refuse(refusal: Refusal, platform: Platform, token: str) -> Outcome:
    is_repeated = platform is Platform.ANDROID and refusal in REPEATED_BY_FIREBASE
    return Outcome(refusal.text(platform, token), refusal, FIREBASE_SENDS if is_repeated else 1)
