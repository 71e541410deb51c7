"""Tests of the rules' file: it is well-formed and complete, and a faulty one is refused."""

import pytest

from notifications.gateways.gorush.models import GatewayErrorRule
from notifications.gateways.gorush.rules.file import parse, seed_rules, shipped_rules

ENTRY = "{platform: ios, match: exact, text: Gone, class: DEAD, code: gone}"
# Apple's reasons, by class.
APPLE = {
    "dead": "Unregistered ExpiredToken BadDeviceToken DeviceTokenNotForTopic MissingDeviceToken",
    "config": "TopicDisallowed BadTopic MissingTopic BadCertificate BadCertificateEnvironment Forbidden "
    "InvalidProviderToken MissingProviderToken UnrelatedKeyIdInToken BadEnvironmentKeyIdInToken ExpiredProviderToken",
    "transient": "TooManyProviderTokenUpdates TooManyRequests IdleTimeout InternalServerError ServiceUnavailable "
    "Shutdown",
    "payload": "PayloadTooLarge PayloadEmpty BadCollapseId BadExpirationDate BadMessageId BadPriority InvalidPushType "
    "DuplicateHeaders BadPath MethodNotAllowed",
}


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
