"""Tests of the rules' file: it is well-formed and complete, and a faulty one is refused."""

import pytest

from notifications.gateways.gorush.models import GatewayErrorRule
from notifications.gateways.gorush.rules.file import parse, seed_rules, shipped_rules

ENTRY = "{platform: ios, match: exact, text: Gone, class: DEAD, code: gone}"
# Every text of the table in docs/gorush.md, by class: [platform, texts].
APPLE = {
    "dead": "Unregistered ExpiredToken BadDeviceToken DeviceTokenNotForTopic MissingDeviceToken",
    "config": "TopicDisallowed BadTopic MissingTopic BadCertificate BadCertificateEnvironment Forbidden "
    "InvalidProviderToken MissingProviderToken UnrelatedKeyIdInToken BadEnvironmentKeyIdInToken ExpiredProviderToken",
    "transient": "TooManyProviderTokenUpdates TooManyRequests IdleTimeout InternalServerError ServiceUnavailable "
    "Shutdown",
    "payload": "PayloadTooLarge PayloadEmpty BadCollapseId BadExpirationDate BadMessageId BadPriority InvalidPushType "
    "DuplicateHeaders BadPath MethodNotAllowed",
}
PARTS = {
    ("ios", "config"): "certificate has expired|revoked certificate|bad certificate|x509:|failed to verify certificate",
    ("ios", "transient"): "|invalid character|no such host|connection refused|dial tcp|Bad Gateway",
    ("ios", "ambiguous"): "Client.Timeout exceeded|context deadline exceeded|context canceled|GOAWAY|connection lost|"
    'EOF|connection reset|Post "https://api.',
    ("android", "dead"): "Requested entity was not found|NotRegistered|uninstalled or unregistered|"
    "not a valid FCM registration token|Invalid registration|SenderId mismatch",
    ("android", "payload"): "message is too big|Request contains an invalid argument|Invalid value at|"
    "Invalid data payload key|exactly one of token|priority must be|malformed topic|invalid image URL|"
    "invalid message at index|multiple alert specifications|multiple sound specifications|"
    "multiple field specifications|you can specify up to 500|please provide at least one device token",
    ("android", "config"): "Permission '|has not been used in project|Firebase Cloud Messaging API|"
    "invalid authentication credentials|missing required authentication|UNAUTHENTICATED|"
    "Auth error from APNS or Web Push Service|invalid_grant|private key should be a PEM|cannot fetch token: 4|"
    "unexpected http response with status: 404|unexpected http response with status: 4|x509|"
    "failed to verify certificate",
    ("android", "transient"): "cannot fetch token|cannot fetch token: 429|Quota exceeded|Resource has been exhausted|"
    "rate exceeded|currently unavailable|Internal error|unexpected http response with status: 5|"
    "unexpected http response with status: 429|failed to establish a connection",
    ("android", "ambiguous"): "timed out while making|unknown error while making|context canceled|"
    "context deadline exceeded|error while parsing response|read: connection reset",
    ("any", "transient"): "max capacity reached",
}


def test_holds_every_row_of_the_description_and_no_other():
    described = {("ios", outcome, text) for outcome, texts in APPLE.items() for text in texts.split()}
    described |= {
        (platform, outcome, text) for (platform, outcome), texts in PARTS.items() for text in texts.split("|")
    }
    assert {(seed.platform, seed.outcome, seed.text) for seed in seed_rules()} == described


def test_each_entry_stands_alone_and_in_order():
    seeds = seed_rules()
    assert len({seed.key for seed in seeds}) == len(seeds) == len(shipped_rules())
    assert [seed.position for seed in seeds] == sorted({seed.position for seed in seeds})


def test_errors_of_quota_are_tried_again_later_than_others():
    late = {seed.text: seed.retry_base_seconds for seed in seed_rules() if seed.retry_base_seconds}
    assert late.pop("TooManyProviderTokenUpdates") == 1200
    assert set(late.values()) == {60}
    assert {"TooManyRequests", "Quota exceeded", "Resource has been exhausted", "rate exceeded"} < set(late)


@pytest.mark.parametrize("seed", seed_rules(), ids=lambda seed: seed.key)
def test_every_entry_would_pass_in_the_console(seed):
    names = ("platform", "match", "text", "outcome", "code", "is_guarded", "retry_base_seconds", "position", "remark")
    rule = GatewayErrorRule(**{name: getattr(seed, name) for name in names})
    rule.clean_fields()
    rule.clean()
    assert rule.text == seed.text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("platform: ios", "platform: huawei"),
        ("match: exact", "match: regex"),
        ("class: DEAD", "class: GONE"),
        ("class: DEAD, ", ""),
        (", code: gone", ""),
        ("code: gone", "code: gone, guardde: true"),
    ],
)
def test_an_entry_that_is_not_understood_is_refused(old, new):
    assert parse(f"- {ENTRY}")[0].code == "gone"
    with pytest.raises((KeyError, TypeError, ValueError)):
        parse(f"- {ENTRY.replace(old, new)}")
