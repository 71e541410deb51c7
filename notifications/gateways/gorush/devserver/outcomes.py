"""What becomes of a push, decided by the prefix of its device token. Pure; the table below is the documentation.

token              the push                              iOS error                 Android error
anything else      is delivered                          -                         -
dead-…             is refused: app uninstalled           Unregistered              Requested entity was not found.
bad-…              is refused: no such token             BadDeviceToken            … not a valid FCM registration token
wrong-…            is refused: another app's token       DeviceTokenNotForTopic    SenderId mismatch
config-…           is refused: operator must act         InvalidProviderToken      Permission '…' denied …
big-…              is refused: payload too large         PayloadTooLarge           Android message is too big
quota-…            is refused for now                    TooManyRequests           Quota exceeded …
busy-…             is refused for now, every time        ServiceUnavailable        The service is currently unavailable.
flaky<N>-…         is refused like busy N times per notification (token and collapse id), then delivered
slow<ms>-REST      takes that long, then goes like the token REST
hang-…             is not sent, and the request never answered: gorush's queue is full
500-…              is not sent, and the request answered 500 with an empty body
garbage-…          is not sent, and the request answered 200 with something that is not JSON: a proxy's page
cut-…              is delivered, and the connection cut without an answer: the caller cannot know
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum


class Platform(IntEnum):
    """gorush's numbers."""

    IOS = 1
    ANDROID = 2
    HUAWEI = 3


class Answer(IntEnum):
    """What the whole HTTP request gets, mildest first: of several tokens, the one with the worst answer prevails."""

    RESULT = 0
    GARBAGE = 1
    EMPTY_500 = 2
    CUT = 3
    HANG = 4


class Refusal(Enum):
    """An error of Apple or Google: the texts gorush passes on for iOS and for Android."""

    DEAD = ("Unregistered", "Requested entity was not found.")
    BAD = ("BadDeviceToken", "The registration token is not a valid FCM registration token")
    WRONG = ("DeviceTokenNotForTopic", "SenderId mismatch")
    CONFIG = ("InvalidProviderToken", "Permission 'cloudmessaging.messages.create' denied on resource")
    BIG = ("PayloadTooLarge", "Android message is too big")
    QUOTA = ("TooManyRequests", "Quota exceeded for quota metric 'Send requests'")
    BUSY = ("ServiceUnavailable", "The service is currently unavailable.")

    def text(self, platform: Platform) -> str:
        ios, android = self.value
        return ios if platform is Platform.IOS else android


@dataclass(frozen=True, slots=True)
class Outcome:
    """`is_sent` says whether the push reaches Apple or Google, `error` what they answer (empty: accepted)."""

    error: str = ""
    is_sent: bool = True
    answer: Answer = Answer.RESULT
    delay_ms: int = 0


DELIVERED = Outcome()
REFUSALS: Mapping[str, Refusal] = {f"{refusal.name.lower()}-": refusal for refusal in Refusal}
ANSWERS: Mapping[str, Outcome] = {
    "hang-": Outcome(is_sent=False, answer=Answer.HANG),
    "500-": Outcome(is_sent=False, answer=Answer.EMPTY_500),
    "garbage-": Outcome(is_sent=False, answer=Answer.GARBAGE),
    "cut-": Outcome(answer=Answer.CUT),
}
FLAKY = re.compile(r"flaky(\d{1,3})-")
SLOW = re.compile(r"slow(\d{1,6})-")
PREFIX = re.compile(r"[a-z0-9]+-")


def decide(token: str, platform: Platform, earlier_tries: int) -> Outcome:
    """Decide the outcome of one push; `earlier_tries` counts the pushes of the same notification to this token."""
    if slow := SLOW.match(token):
        rest = decide(token[slow.end() :], platform, earlier_tries)
        return replace(rest, delay_ms=rest.delay_ms + int(slow[1]))
    if flaky := FLAKY.match(token):
        is_refused = earlier_tries < int(flaky[1])
        return Outcome(error=Refusal.BUSY.text(platform)) if is_refused else DELIVERED
    match = PREFIX.match(token)
    prefix = match[0] if match else ""
    if prefix in REFUSALS:
        return Outcome(error=REFUSALS[prefix].text(platform))
    return ANSWERS.get(prefix, DELIVERED)
