"""The outcome of a push, decided by the fate that begins its device token. The module is pure.

A push is delivered, unless its token begins with one of these:

<refusal>-…        is refused, with the error of that name (`Refusal`), in small letters
hang-…             is not sent, and the request never answered: gorush's queue is full
500-…              is not sent, and the request answered 500 with an empty body
garbage-…          is not sent, and the request answered 200 with something that is not JSON: a proxy's page
cut-…              is delivered, and the connection cut without an answer: the result is unknown
flaky<N>-…         is refused like busy N times per notification (token and collapse id), then delivered
slow<ms>-REST      takes that long, then goes like the token REST

Tokens of Apple are hex. The fate may be written in hex too, so that servers accept the whole as a token.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, auto
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


class Answer(Enum):
    """The answer to the HTTP request."""

    RESULT = auto()
    GARBAGE = auto()
    CUT = auto()
    HANG = auto()


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

    def sends(self, platform: Platform) -> int:
        """Return how often gorush sends one push. The Firebase SDK repeats such failures, without a setting for it."""
        return FIREBASE_SENDS if platform is Platform.ANDROID and self in REPEATED_BY_FIREBASE else 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one push.

    `is_sent`: it reaches Apple or Google, `sends` times. `error`: their answer (empty: accepted). `status`: that of
    the answer, which is empty unless it is 200.
    """

    error: str = ""
    refusal: Refusal | None = None
    sends: int = 1
    is_sent: bool = True
    answer: Answer = Answer.RESULT
    status: int = 200
    delay_ms: int = 0

    @property
    def upstream_error(self) -> str:
        """Return the answer of Apple or Google. A push whose answer got lost was accepted."""
        return "" if self.refusal in ANSWER_LOST else self.error


DELIVERED = Outcome()
REPEATED_BY_FIREBASE = (Refusal.OUTAGE, Refusal.LOST, Refusal.RESET)
ANSWER_LOST = (Refusal.LOST, Refusal.RESET)
REFUSALS: Mapping[str, Refusal] = {f"{refusal.name.lower()}-": refusal for refusal in Refusal}
ANSWERS: Mapping[str, Outcome] = {
    "hang-": Outcome(is_sent=False, answer=Answer.HANG),
    "500-": Outcome(is_sent=False, status=500),
    "garbage-": Outcome(is_sent=False, answer=Answer.GARBAGE),
    "cut-": Outcome(answer=Answer.CUT),
}
FLAKY = re.compile(r"flaky(\d{1,3})-")
SLOW = re.compile(r"slow(\d{1,6})-")
PREFIX = re.compile(r"[a-z0-9]+-")
# `[a-z0-9]+-` once or several times, in hex.
HEX_PREFIX = re.compile(r"((?:(?:3[0-9]|6[1-9a-f]|7[0-9a])+2d)+)[0-9a-f]{64}")


def decide(token: str, platform: Platform, earlier_tries: int) -> Outcome:
    """Decide the outcome of one push. `earlier_tries` counts the pushes of the same notification to this token."""
    return _decide(fate_of(token), token, platform, earlier_tries)


def fate_of(token: str) -> str:
    """Return the text whose prefix decides the outcome of a push: the token, or the text before it in hex."""
    match = HEX_PREFIX.fullmatch(token)
    return bytes.fromhex(match[1]).decode() if match else token


def _decide(fate: str, token: str, platform: Platform, earlier_tries: int) -> Outcome:
    if slow := SLOW.match(fate):
        rest = _decide(fate[slow.end() :], token, platform, earlier_tries)
        return replace(rest, delay_ms=rest.delay_ms + int(slow[1]))
    if flaky := FLAKY.match(fate):
        is_refused = earlier_tries < int(flaky[1])
        return refuse(Refusal.BUSY, platform, token) if is_refused else DELIVERED
    match = PREFIX.match(fate)
    prefix = match[0] if match else ""
    if prefix in REFUSALS:
        return refuse(REFUSALS[prefix], platform, token)
    return ANSWERS.get(prefix, DELIVERED)


def refuse(refusal: Refusal, platform: Platform, token: str) -> Outcome:
    return Outcome(error=refusal.text(platform, token), refusal=refusal, sends=refusal.sends(platform))
