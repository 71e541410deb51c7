"""Each job on frames of a few rows, compared with figures worked out on paper."""

from datetime import UTC, date, datetime, timedelta
from math import exp, log
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.testing import assertSchemaEqual

from spark_reports.jobs import tables
from spark_reports.jobs.reports import (
    anomalies,
    data_quality,
    error_rates,
    failure_signatures,
    latency,
    load_profile,
    token_churn,
    token_lifetime,
)
from spark_reports.jobs.reports.data_quality import EXPECTED
from spark_reports.jobs.schemas import schema_of
from spark_reports.jobs.sources import is_within_day, local_rows
from spark_reports.tests.frames import DAY, NOON, frame, rows_of

YESTERDAY = DAY - timedelta(days=1)


# error_rates ----------------------------------------------------------------------------------------------------------
def outcomes(spark: Any, **facts: Any) -> Any:
    names = (tables.ENVELOPES, tables.NOTIFICATIONS, tables.ATTEMPTS, tables.REPLIES)
    return error_rates.count_outcomes(*[frame(spark, table, facts.get(table.name, [])) for table in names]).cache()


def error_rates_of(spark: Any, earlier: Any = (), **facts: Any) -> Any:
    return error_rates.transform(outcomes(spark, **facts), frame(spark, tables.ERROR_RATES, earlier)).cache()


def test_every_event_counts_in_its_stage_with_outcome_and_code(spark: Any) -> None:
    counted = outcomes(
        spark,
        envelopes=[
            {"type": "registration", "state": "processed"},
            {"type": "registration", "state": "processed", "reason": "stale_version"},
            {"type": "query", "state": "processed", "reason": "nothing_found"},
            {"type": "unknown", "state": "dropped", "reason": "not_decryptable"},
            {"type": "request", "state": "failed", "reason": "KeyError"},
            {"type": "query", "state": "pending_key"},
            {"type": "request", "state": "processed"},  # counted by its notifications
        ],
        notifications=[
            {"state": "delivered", "report": "success"},
            {"state": "refused", "report": "wrong_token"},
            {"state": "suppressed", "report": "success"},
        ],
        attempts=[{"outcome": "dead", "code": "unregistered"}, {"outcome": "open"}],
        replies=[
            {"type": "response", "state": "abandoned"},
            {"type": "response", "state": "pending"},
            {"type": "response", "state": "confirmed", "repeats": 2},
            {"type": "response", "state": "unconfirmed", "repeats": 4},
            {"type": "response", "state": "unconfirmed"},
        ],
    )

    assert rows_of(counted, "stage", "platform", "outcome", "code", "is_failure", "events") == [
        ("dispatch", "ios", "dead", "unregistered", True, 1),
        ("dispatch", "ios", "open", "", False, 1),
        ("inbox", "none", "dropped", "not_decryptable", True, 1),
        ("query", "none", "nothing_found", "", False, 1),
        ("query", "none", "open", "", False, 1),
        ("registration", "none", "accepted", "", False, 1),
        ("registration", "none", "refused", "stale_version", True, 1),
        ("reply", "none", "abandoned", "response", True, 1),
        ("reply", "none", "confirmed", "response", False, 1),
        ("reply", "none", "unchecked", "response", False, 1),
        ("reply", "none", "unconfirmed", "response", True, 1),
        ("reply", "none", "waiting", "response", False, 1),
        ("request", "ios", "accepted", "", False, 1),
        ("request", "ios", "refused", "wrong_token", True, 1),
        ("request", "ios", "suppressed", "", False, 1),
        ("request", "none", "failed", "KeyError", True, 1),
    ]


def test_a_label_that_this_version_does_not_know_counts_as_unknown(spark: Any) -> None:
    """A state of a later version is neither accepted nor a failure, and an end of a later version is no death."""
    new = {"state": "of tomorrow"}
    facts = {"envelopes": [new | {"type": "query"}], "notifications": [new], "replies": [new]}
    counted = outcomes(spark, attempts=[{"outcome": "of tomorrow"}], **facts)
    events = frame(spark, tables.REGISTRATION_EVENTS, [{"kind": "of tomorrow", "was_active": True}])
    active = frame(spark, tables.ACTIVE_TOKENS, [{"at_start": 1, "at_end": 0}])

    assert {(row.outcome, row.is_failure) for row in counted.collect()} == {("unknown", False)}
    assert rows_of(token_churn.transform(events, active), "died", "unexplained") == [(0, 1)]
    assert data_quality.count_all({"registration_events": events}).first()["unknown"] == 1


def test_a_message_without_a_request_is_not_accepted(spark: Any) -> None:
    read = {"type": "contact_code_advertisement", "state": "processed"}
    assert rows_of(outcomes(spark, envelopes=[read]), "stage", "outcome", "is_failure") == [("inbox", "read", False)]


def test_rates_are_of_all_events_of_an_hour_and_of_the_whole_day(spark: Any) -> None:
    tries = [{"outcome": "delivered", "at": NOON}] * 3 + [{"outcome": "dead", "code": "gone", "at": NOON}]
    tries += [{"outcome": "delivered", "at": NOON + timedelta(hours=1)}] * 4

    rates = error_rates_of(spark, attempts=tries)

    assert rows_of(rates, "hour", "outcome", "events", "total", "rate") == [
        (12, "dead", 1, 4, 0.25),
        (12, "delivered", 3, 4, 0.75),
        (13, "delivered", 4, 4, 1.0),
        (None, "dead", 1, 8, 0.125),
        (None, "delivered", 7, 8, 0.875),
    ]


def test_bridges_that_share_a_platform_have_rates_of_their_own(spark: Any) -> None:
    dead = {"platform": "android", "outcome": "dead", "code": "gone"}
    tries = [dead, dead | {"outcome": "delivered", "code": ""}, dead | {"bridge": "xmpp"}]

    rates = error_rates_of(spark, attempts=tries, replies=[{"type": "response", "state": "abandoned"}])

    failed = rates.where("hour IS NULL AND is_failure")
    assert rows_of(failed, "stage", "platform", "bridge", "events", "total", "rate") == [
        ("dispatch", "android", "waku", 1, 2, 0.5),
        ("dispatch", "android", "xmpp", 1, 1, 1.0),
        ("reply", "none", "waku", 1, 1, 1.0),
    ]


def test_a_rate_is_compared_with_the_same_hour_of_the_days_before(spark: Any) -> None:
    cell = {"stage": "dispatch", "outcome": "delivered", "hour": 12, "total": 100}
    earlier = [
        cell | {"day": DAY - timedelta(days=n), "rate": rate, "events": 1}
        for n, rate in [(1, 0.98), (2, 0.99), (3, 0.97), (8, 0.10)]
    ]

    rates = error_rates_of(spark, earlier, attempts=[{"outcome": "delivered"}, {"outcome": "dead"}])

    [(usual, change)] = rows_of(rates.where("hour = 12 AND outcome = 'delivered'"), "usual_rate", "change")
    assert (usual, change) == (0.98, pytest.approx(-0.48))
    [(usual, change, z_score)] = rows_of(
        rates.where("hour = 12 AND outcome = 'dead'"), "usual_rate", "change", "z_score"
    )
    assert (usual, change) == (0.0, 0.5)  # those days had traffic, and no dead token
    assert z_score > 0


def test_two_days_are_too_few_for_a_comparison(spark: Any) -> None:
    cell = {"stage": "dispatch", "outcome": "delivered", "hour": 12, "total": 100, "rate": 0.9}
    earlier = [cell | {"day": DAY - timedelta(days=n)} for n in (1, 2)]

    rates = error_rates_of(spark, earlier, attempts=[{"outcome": "delivered"}])

    assert rows_of(rates.where("hour = 12"), "usual_rate", "change", "z_score") == [(None, None, None)]


# anomalies ------------------------------------------------------------------------------------------------------------
def test_a_bridge_is_compared_with_itself(spark: Any) -> None:
    def of_day(days_before: int, bridge: str, events: int) -> dict[str, Any]:
        day = DAY - timedelta(days=days_before)
        failed = {"stage": "dispatch", "outcome": "dead", "is_failure": True, "total": 1000}
        return failed | {"day": day, "bridge": bridge, "events": events}

    nothing = frame(spark, tables.TOKEN_CHURN, [])
    usual = [of_day(n, bridge, events) for n in range(1, 8) for bridge, events in (("waku", 20), ("xmpp", 300))]
    today = frame(spark, tables.ERROR_RATES, [of_day(0, "waku", 300), of_day(0, "xmpp", 300)])
    found = anomalies.transform(today, frame(spark, tables.ERROR_RATES, usual), nothing, nothing)

    assert rows_of(found, "bridge", "events", "usual") == [("waku", 300, 0.02)]


def anomalies_of(spark: Any, *, failures: int, total: int = 1000) -> list[tuple[Any, ...]]:
    def of_day(days_before: int, events: int) -> list[dict[str, Any]]:
        cell = {"day": DAY - timedelta(days=days_before), "stage": "dispatch", "total": total}
        failed = cell | {"outcome": "dead", "is_failure": True, "events": events}
        return [failed, cell | {"outcome": "delivered", "is_failure": False, "events": total - events}]

    earlier = [row for n in range(1, 8) for row in of_day(n, 20 + n % 3)]
    nothing = frame(spark, tables.TOKEN_CHURN, [])
    today = frame(spark, tables.ERROR_RATES, of_day(0, failures))
    found = anomalies.transform(today, frame(spark, tables.ERROR_RATES, earlier), nothing, nothing)
    return rows_of(found, "figure", "stage", "events", "total", "value", "usual")


def test_an_error_rate_outside_its_usual_band_is_flagged_with_its_numbers(spark: Any) -> None:
    assert anomalies_of(spark, failures=90) == [("error_rate", "dispatch", 90, 1000, 0.09, 0.021)]


def test_an_error_rate_within_its_usual_band_is_not_flagged(spark: Any) -> None:
    assert anomalies_of(spark, failures=30) == []


def test_few_events_are_no_anomaly(spark: Any) -> None:
    assert anomalies_of(spark, failures=40, total=45) == []


def test_a_churn_rate_outside_its_usual_band_is_flagged(spark: Any) -> None:
    nothing = frame(spark, tables.ERROR_RATES, [])
    usual = {"active_at_start": 10_000, "unregistered": 20, "died": 30, "churn_rate": 0.005}
    earlier = [usual | {"day": DAY - timedelta(days=n)} for n in range(1, 8)]
    today = [usual | {"died": 480, "churn_rate": 0.05}]
    found = anomalies.transform(
        nothing, nothing, frame(spark, tables.TOKEN_CHURN, today), frame(spark, tables.TOKEN_CHURN, earlier)
    )

    assert rows_of(found, "figure", "stage", "platform", "events", "value") == [
        ("churn_rate", "churn", "ios", 500, 0.05)
    ]


# token_churn ----------------------------------------------------------------------------------------------------------
ACTIVE = {"was_active": True, "is_active": True}
FLOWS = ["new", "returned", "moved_in", "refreshed", "token_changed", "unregistered", "died", "expired", "moved_out"]


@pytest.mark.parametrize(
    ("event", "flow"),
    [
        ({"kind": "registered", "is_first": True, "is_active": True}, "new"),
        ({"kind": "refreshed", "is_active": True}, "returned"),
        ({"kind": "revived", "is_active": True}, "returned"),
        ({"kind": "refreshed"} | ACTIVE, "refreshed"),
        ({"kind": "settings_changed"} | ACTIVE, "refreshed"),
        ({"kind": "token_changed"} | ACTIVE, "token_changed"),
        ({"kind": "unregistered", "was_active": True}, "unregistered"),
        ({"kind": "token_died", "was_active": True}, "died"),
        ({"kind": "expired", "was_active": True}, "expired"),
        ({"kind": "unregistered"}, None),  # the token had died before
    ],
)
def test_an_event_is_one_flow_by_what_it_changed(spark: Any, event: dict[str, Any], flow: str | None) -> None:
    counted = token_churn.count_flows(frame(spark, tables.REGISTRATION_EVENTS, [event]))

    expected = [tuple(int(name == flow) for name in FLOWS)] if flow else []
    assert rows_of(counted, *FLOWS) == expected


def test_a_move_leaves_one_place_and_enters_another(spark: Any) -> None:
    event = {"kind": "token_changed", "platform": "android", "previous_platform": "ios"} | ACTIVE
    counted = token_churn.count_flows(frame(spark, tables.REGISTRATION_EVENTS, [event]))

    assert rows_of(counted, "platform", "moved_in", "moved_out", "token_changed") == [
        ("android", 1, 0, 0),
        ("ios", 0, 1, 0),
    ]


def test_tokens_of_two_bridges_at_one_place_are_counted_apart(spark: Any) -> None:
    left = {"kind": "token_died", "was_active": True}
    events = frame(spark, tables.REGISTRATION_EVENTS, [left, left | {"bridge": "xmpp"}])
    stock = {"at_start": 4, "at_end": 3}
    active = frame(spark, tables.ACTIVE_TOKENS, [stock, stock | {"bridge": "xmpp", "at_start": 2, "at_end": 1}])
    lives = [{"began_on": DAY, "last_day": DAY, "end": "ended", "tokens": n} for n in (1, 2)]
    lives = [lives[0], lives[1] | {"bridge": "xmpp"}]

    churn = token_churn.transform(events, active)
    survival = token_lifetime.transform(frame(spark, tables.TOKEN_SPELLS, lives), {DAY: DAY})

    assert rows_of(churn, "bridge", "died", "active_at_start", "unexplained", "churn_rate") == [
        ("waku", 1, 4, 0, 0.25),
        ("xmpp", 1, 2, 0, 0.5),
    ]
    assert rows_of(survival, "bridge", "tokens", "ended") == [("waku", 1, 1), ("xmpp", 2, 2)]


def test_tokens_that_do_not_reconcile_are_unexplained(spark: Any) -> None:
    events = frame(spark, tables.REGISTRATION_EVENTS, [{"kind": "token_died", "was_active": True}])
    active = frame(spark, tables.ACTIVE_TOKENS, [{"at_start": 4, "at_end": 2}, {"at_start": 6, "at_end": 6}])

    churn = token_churn.transform(events, active)

    columns = ("active_at_start", "died", "active_at_end", "unexplained", "churn_rate", "net_growth")
    assert rows_of(churn, *columns) == [(10, 1, 8, 1, 0.1, -2)]


# token_lifetime -------------------------------------------------------------------------------------------------------
def test_survival_is_that_of_the_textbook(spark: Any) -> None:
    """Of ten tokens of one day, one ends after 3 days, two are censored after 8, and three end after 9."""
    born = date(2026, 11, 2)  # a Monday
    ends = [(3, "ended", 1), (8, "left", 2), (9, "ended", 3), (18, "alive", 4)]
    lives = [
        {"began_on": born, "last_day": born + timedelta(days=age), "end": end, "tokens": n} for age, end, n in ends
    ]

    survival = token_lifetime.transform(frame(spark, tables.TOKEN_SPELLS, lives), {DAY: born})

    columns = ("cohort", "age_weeks", "tokens", "at_risk", "ended", "survival", "survival_low", "survival_high")
    rows = rows_of(survival, *columns)
    second = 0.9 * 4 / 7
    width = 1.959964 * (1 / (10 * 9) + 3 / (7 * 4)) ** 0.5 / -log(second)
    bounds = [pytest.approx(v) for v in (second, second ** exp(width), second ** exp(-width))]
    assert rows[0][:6] == (born, 1, 10, 9 * 7 + 4, 1, pytest.approx(0.9))
    assert rows[1] == (born, 2, 10, 2 * 2 + 3 * 3 + 4 * 7, 3, *bounds)
    assert rows[2] == (born, 3, 10, 4 * 5, 0, *bounds)


@pytest.mark.parametrize(("end", "survival"), [("ended", 0.0), ("alive", 1.0)])
def test_the_interval_is_the_survival_itself_if_all_or_none_have_ended(spark: Any, end: str, survival: float) -> None:
    """The log-log scale has no value there, and the interval must not become NaN."""
    lives = [{"began_on": YESTERDAY, "last_day": YESTERDAY, "end": end, "tokens": 2}]
    found = token_lifetime.transform(frame(spark, tables.TOKEN_SPELLS, lives), {DAY: YESTERDAY})

    assert rows_of(found, "survival", "survival_low", "survival_high") == [(survival, survival, survival)]


def test_a_cohort_that_began_before_the_history_is_marked(spark: Any) -> None:
    monday = date(2026, 11, 16)
    lives = [{"began_on": monday - timedelta(days=n), "last_day": DAY, "end": "alive", "tokens": 1} for n in (0, 1)]
    survival = token_lifetime.transform(frame(spark, tables.TOKEN_SPELLS, lives), {DAY: monday})

    assert {(row.cohort, row.is_complete) for row in survival.collect()} == {
        (monday, True),
        (monday - timedelta(days=7), False),
    }


# latency --------------------------------------------------------------------------------------------------------------
def latency_of(spark: Any, **facts: Any) -> Any:
    names = (tables.ENVELOPES, tables.NOTIFICATION_TIMES, tables.ATTEMPTS, tables.REPLIES)
    frames = [frame(spark, table, facts.get(table.name, [])) for table in names]
    return latency.transform(latency.count_durations(*frames)).cache()


def test_percentiles_by_stage_and_platform_and_for_all(spark: Any) -> None:
    tries = [{"latency_us": ms * 1000, "platform": "ios" if ms <= 50 else "android"} for ms in range(1, 101)]

    found = latency_of(spark, attempts=tries).where("bridge = 'all'")

    assert rows_of(found, "stage", "platform", "events", "p50_ms", "p90_ms", "p99_ms", "max_us") == [
        ("gateway", "all", 100, 50.5, pytest.approx(90.1), pytest.approx(99.01), 100_000),
        ("gateway", "android", 50, 75.5, pytest.approx(95.1), pytest.approx(99.51), 100_000),
        ("gateway", "ios", 50, 25.5, pytest.approx(45.1), pytest.approx(49.51), 50_000),
    ]


def test_percentiles_by_bridge_and_for_all(spark: Any) -> None:
    found = latency_of(spark, attempts=[{"latency_us": 10_000}, {"latency_us": 30_000, "bridge": "xmpp"}])

    assert rows_of(found, "platform", "bridge", "events", "p50_ms") == [
        ("all", "all", 2, 20.0),
        ("all", "waku", 1, 10.0),
        ("all", "xmpp", 1, 30.0),
        ("ios", "all", 2, 20.0),
        ("ios", "waku", 1, 10.0),
        ("ios", "xmpp", 1, 30.0),
    ]


def test_the_share_within_the_deadline_counts_the_deadline_itself(spark: Any) -> None:
    answers = [{"answered_us": us, "deadline_us": 2_000_000} for us in (1, 2_000_000, 2_000_001, 5_000_000)]

    found = latency_of(spark, notification_times=answers)

    assert rows_of(found.where("platform = 'all' AND bridge = 'all'"), "stage", "within_deadline") == [("answer", 0.5)]


def test_the_longest_is_exact_and_percentiles_are_rounded_down_to_their_step(spark: Any) -> None:
    """1.001 s is 1001 ms, because microseconds are divided as integers."""
    times = [1_001_000, 12_345_678]
    found = latency_of(spark, envelopes=[{"processed_us": us} for us in times]).where("platform = 'all'")

    assert set(rows_of(found, "max_us", "p50_ms")) == {(12_345_678, (1001 + 12_000) / 2)}


def test_implausible_durations_are_left_out(spark: Any) -> None:
    found = latency_of(spark, envelopes=[{"processed_us": us} for us in (-(10**7), 7999, 10**15)])

    assert rows_of(found, "stage", "platform", "bridge", "events", "max_us") == [
        ("decide", "all", "all", 1, 7999),
        ("decide", "all", "waku", 1, 7999),
        ("decide", "none", "all", 1, 7999),
        ("decide", "none", "waku", 1, 7999),
    ]


# failure_signatures ---------------------------------------------------------------------------------------------------
def signatures_of(
    spark: Any, today: int, before: dict[int, int], snapshots: Any = (), earlier: Any = (), known_days: int = 30
) -> list[tuple[Any, ...]]:
    failed = {"stage": "dispatch", "outcome": "transient", "code": "unavailable", "is_failure": True}
    other = failed | {"code": "other", "events": 5}
    rates = [failed | {"events": today}, other]
    rates_before = [
        failed | {"day": DAY - timedelta(days=n), "events": events} for n, events in before.items() if events
    ]
    rates_before += [other | {"day": DAY - timedelta(days=n)} for n in range(1, 8)]
    found = failure_signatures.transform(
        frame(spark, tables.ERROR_RATES, rates),
        frame(spark, tables.ERROR_RATES, rates_before),
        frame(spark, tables.UNKNOWN_ERRORS, snapshots),
        frame(spark, tables.FAILURE_SIGNATURES, earlier),
        {DAY: known_days},
    )
    columns = ("source", "signature", "events", "usual_events", "is_new", "is_rising", "first_seen_on")
    return rows_of(found.where("signature <> 'other'"), *columns)


def test_a_code_twice_as_frequent_as_usual_is_rising(spark: Any) -> None:
    week_ago = DAY - timedelta(days=7)
    assert signatures_of(spark, 40, dict.fromkeys(range(1, 8), 20)) == [
        ("code", "unavailable", 40, 20.0, False, True, week_ago)
    ]
    assert signatures_of(spark, 39, dict.fromkeys(range(1, 8), 20)) == [
        ("code", "unavailable", 39, 20.0, False, False, week_ago)
    ]


def test_a_code_that_was_never_seen_is_new(spark: Any) -> None:
    assert signatures_of(spark, 1, {}) == [("code", "unavailable", 1, 0.0, True, True, DAY)]


def test_no_code_is_new_without_known_earlier_days(spark: Any) -> None:
    assert signatures_of(spark, 1, {}, known_days=0) == [("code", "unavailable", 1, 0.0, False, False, DAY)]


def test_first_seen_goes_back_as_far_as_earlier_reports_say(spark: Any) -> None:
    first = date(2026, 10, 30)
    known = {"source": "code", "signature": "unavailable", "day": DAY - timedelta(days=3), "first_seen_on": first}
    assert signatures_of(spark, 1, {}, earlier=[known]) == [("code", "unavailable", 1, 0.0, False, False, first)]


def test_the_events_of_an_unknown_text_are_the_growth_of_its_counter(spark: Any) -> None:
    seen = datetime(2026, 11, 18, tzinfo=UTC)
    texts = [
        {"day": DAY - timedelta(days=n), "signature": "strange <n>", "total": total, "first_seen_at": seen}
        for n, total in [(2, 3), (1, 10), (0, 42)]
    ]
    [unknown, _] = sorted(signatures_of(spark, 1, {}, snapshots=texts), reverse=True)

    assert unknown == ("unknown", "strange <n>", 32, None, False, False, seen.date())


def test_a_day_without_any_attempt_keeps_its_unknown_texts(spark: Any) -> None:
    """A gateway may send an error that no rule knows before any attempt of the day has ended."""
    nothing, texts = frame(spark, tables.ERROR_RATES, []), [{"signature": "strange <n>", "total": 7}]
    snapshots = frame(spark, tables.UNKNOWN_ERRORS, [*texts, texts[0] | {"day": YESTERDAY, "total": 4}])
    known = frame(spark, tables.FAILURE_SIGNATURES, [])
    found = failure_signatures.transform(nothing, nothing, snapshots, known, {DAY: 3})

    assert rows_of(found, "day", "source", "signature", "events") == [(DAY, "unknown", "strange <n>", 3)]


def test_an_unknown_text_that_was_not_seen_for_thirty_days_is_new(spark: Any) -> None:
    """The counter keeps the first time for longer than reports look back."""
    is_new_by_days_ago = {0: True, 1: False, 30: False, 31: True, 200: True}
    texts = []
    for days_ago in is_new_by_days_ago:
        seen = NOON - timedelta(days=days_ago)
        text = {"day": DAY, "signature": f"strange {days_ago}", "total": 9, "first_seen_at": seen}
        texts += [text, text | {"day": YESTERDAY, "total": 4}] if days_ago else [text]

    found = {row[1]: row[4:] for row in signatures_of(spark, 1, {}, snapshots=texts) if row[0] == "unknown"}

    assert found == {
        f"strange {days_ago}": (is_new, is_new, (NOON - timedelta(days=days_ago)).date())
        for days_ago, is_new in is_new_by_days_ago.items()
    }


# load_profile ---------------------------------------------------------------------------------------------------------
def test_the_top_percent_and_retries_of_senders_and_recipients(spark: Any) -> None:
    light = {"role": "recipient", "actors": 100, "notifications": 1, "tried": 100, "attempts": 100}
    heavy = {"role": "recipient", "rank": 1, "actors": 1, "notifications": 60, "tried": 50, "attempts": 150}
    sender = {"role": "sender", "rank": 1, "actors": 1, "notifications": 50, "tried": 50, "attempts": 150}
    actors = frame(spark, tables.ACTORS, [light, heavy, sender])

    columns = ("role", "actors", "notifications", "top_actors", "top_share", "tried", "attempts", "retry_amplification")
    assert rows_of(load_profile.transform(actors), *columns) == [
        ("recipient", 101, 160, 2, pytest.approx(61 / 160), 150, 250, pytest.approx(250 / 150)),
        ("sender", 1, 50, 1, 1.0, 50, 150, 3.0),
    ]


def test_the_heaviest_are_named_by_pseudonym_only(spark: Any) -> None:
    facts = {"role": "recipient", "actors": 1}
    rows = [
        facts | {"rank": 1, "actor": -1, "notifications": 3, "attempts": 3},
        facts | {"rank": 2, "actor": 255, "notifications": 1, "attempts": 2},
        facts | {"rank": 3, "notifications": 1},
        facts | {"actors": 5, "notifications": 1},
    ]
    heaviest = load_profile.heaviest(frame(spark, tables.ACTORS, rows))

    assert rows_of(heaviest, "rank", "actor", "notifications", "attempts", "share") == [
        (1, "ffffffffffffffff", 3, 3, 0.3),
        (2, "00000000000000ff", 1, 2, 0.1),
        (3, "", 1, 0, 0.1),
    ]


def test_shares_are_of_the_notifications_of_the_role_in_the_load_profile(spark: Any) -> None:
    """A refused notification has a sender and no recipient, so it counts for the senders alone."""
    each = {"sender": [40, 30, 20, 10], "recipient": [45, 25, 10]}
    rows = [
        {"role": role, "rank": rank, "actors": 1, "notifications": number}
        for role, numbers in each.items()
        for rank, number in enumerate(numbers, start=1)
    ]
    actors = frame(spark, tables.ACTORS, rows)

    totals = dict(rows_of(load_profile.transform(actors), "role", "notifications"))
    shares = [(role, n, n / totals[role]) for role, numbers in each.items() for n in numbers]
    assert totals == {"sender": 100, "recipient": 80}
    assert rows_of(load_profile.heaviest(actors), "role", "notifications", "share") == sorted(shares, key=repr)
    assert [sum(share for of, _, share in shares if of == role) for role in each] == pytest.approx([1, 1])


# data_quality ---------------------------------------------------------------------------------------------------------
def test_missing_rows_and_implausible_times_are_findings(spark: Any) -> None:
    tries = [{}, {"at": NOON - timedelta(days=400)}, {"latency_us": -(10**7)}, {"queued_us": 10**16}]
    attempts = frame(spark, tables.ATTEMPTS, tries)
    expected = data_quality.expected_rows(spark, {"attempts": {DAY.isoformat(): 5}})
    churn = frame(spark, tables.TOKEN_CHURN, [{"active_at_start": 5, "active_at_end": 6, "unexplained": 0}])
    before = frame(spark, tables.TOKEN_CHURN, [{"day": YESTERDAY, "active_at_end": 5}])

    checks = data_quality.transform(expected, data_quality.count_all({"attempts": attempts}), churn, before)

    assert rows_of(checks, "check_name", "subject", "is_ok", "expected", "found") == [
        ("continuity", "device tokens", True, 5, 5),
        ("reconciliation", "ios  waku", True, 6, 6),
        ("row_count", "attempts", False, 5, 4),
        ("timestamps", "attempts", False, 0, 3),
        ("unknown_values", "attempts", False, 0, 4),
    ]


def test_rows_of_the_plan_start_no_python_on_executors(spark: Any) -> None:
    some, none = local_rows(spark, [(DAY.isoformat(), "attempts", 5)], EXPECTED), local_rows(spark, [], EXPECTED)

    assert [tuple(row) for row in some.collect()] == [(DAY, "attempts", 5)]
    assert (none.collect(), none.columns) == ([], EXPECTED.names)
    assert "ExistingRDD" not in some._jdf.queryExecution().executedPlan().toString()
    with pytest.raises(Py4JJavaError, match="MALFORMED_RECORD"):
        local_rows(spark, [(DAY.isoformat(), "attempts", "many")], EXPECTED).collect()


def test_a_report_with_too_few_days_of_history_is_a_finding(spark: Any) -> None:
    days = {"error_rates": {DAY.isoformat(): (7, 5)}, "token_churn": {DAY.isoformat(): (7, 6)}}

    assert rows_of(data_quality.history(spark, days), "check_name", "subject", "is_ok", "expected", "found") == [
        ("history", "error_rates", False, 7, 5),
        ("history", "token_churn", True, 7, 6),
    ]


@pytest.mark.parametrize(("odd", "is_ok"), [(1, True), (2, False)])
def test_a_check_fails_only_above_its_threshold(spark: Any, odd: int, is_ok: bool) -> None:
    """One of a thousand rows or tokens may be odd."""
    tries = [{"outcome": "delivered"}] * (1000 - odd) + [{"outcome": "of tomorrow", "latency_us": 10**16}] * odd
    counts = data_quality.count_all({"attempts": frame(spark, tables.ATTEMPTS, tries)})
    expected = data_quality.expected_rows(spark, {"attempts": {DAY.isoformat(): 1000}})
    churn = [{"active_at_start": 1000, "active_at_end": 1000 - odd, "unexplained": odd}]
    before = frame(spark, tables.TOKEN_CHURN, [{"day": YESTERDAY, "active_at_end": 1000 + odd}])

    checks = data_quality.transform(expected, counts, frame(spark, tables.TOKEN_CHURN, churn), before)

    assert dict(rows_of(checks, "check_name", "is_ok")) == {
        "continuity": is_ok,
        "reconciliation": is_ok,
        "row_count": True,
        "timestamps": is_ok,
        "unknown_values": is_ok,
    }


def test_a_row_that_is_lost_is_a_finding_among_any_number(spark: Any) -> None:
    [checked] = data_quality.row_counts(
        data_quality.expected_rows(spark, {"attempts": {DAY.isoformat(): 1_000_000}}),
        spark.createDataFrame([(DAY, "attempts", 999_999)], "day date, subject string, found long"),
    ).collect()

    assert not checked.is_ok


def test_noise_between_two_clocks_is_plausible_and_counts_as_zero(spark: Any) -> None:
    read = {"type": "query", "state": "processed"}
    envelopes = [read | {"processed_us": us} for us in (-3_000, -5_000_000, -5_000_001, 7_000)]

    assert data_quality.count_all({"envelopes": frame(spark, tables.ENVELOPES, envelopes)}).first()["absurd"] == 1
    [decided] = latency_of(spark, envelopes=envelopes).where("platform = 'none' AND bridge = 'waku'").collect()
    assert (decided.events, decided.p50_ms, decided.max_us) == (3, 0.0, 7_000)


def test_rows_outside_of_their_day_are_not_counted(spark: Any) -> None:
    midnight = datetime(2026, 11, 20, tzinfo=UTC)
    times = [midnight - timedelta(microseconds=1), midnight, midnight + timedelta(days=1)]

    kept = frame(spark, tables.ATTEMPTS, [{"at": at} for at in times]).where(is_within_day())

    assert kept.count() == 1


# contracts ------------------------------------------------------------------------------------------------------------
def test_every_transform_ends_with_the_columns_of_its_report(spark: Any) -> None:
    def empty(table: Any) -> Any:
        return frame(spark, table, [])

    notifications, actors, events, active = (
        empty(t) for t in (tables.NOTIFICATIONS, tables.ACTORS, tables.REGISTRATION_EVENTS, tables.ACTIVE_TOKENS)
    )
    rates, signatures, churn = (empty(t) for t in (tables.ERROR_RATES, tables.FAILURE_SIGNATURES, tables.TOKEN_CHURN))
    expected = data_quality.expected_rows(spark, {"notifications": {DAY.isoformat(): 0}})
    results = {
        tables.ANOMALIES: anomalies.transform(rates, rates, churn, churn),
        tables.FAILURE_SIGNATURES: failure_signatures.transform(
            rates, rates, empty(tables.UNKNOWN_ERRORS), signatures, {DAY: 0}
        ),
        tables.DATA_QUALITY: data_quality.transform(
            expected, data_quality.count_all({"notifications": notifications}), churn, churn
        ),
        tables.ERROR_RATES: error_rates.transform(outcomes(spark), empty(tables.ERROR_RATES)),
        tables.TOKEN_CHURN: token_churn.transform(events, active),
        tables.TOKEN_LIFETIME: token_lifetime.transform(empty(tables.TOKEN_SPELLS), {DAY: DAY}),
        tables.LATENCY: latency_of(spark),
        tables.LOAD_PROFILE: load_profile.transform(actors),
        tables.HEAVY_ACTORS: load_profile.heaviest(actors),
    }
    assert results.keys() == set(tables.REPORT_TABLES)
    for table, result in results.items():
        assertSchemaEqual(result.schema, schema_of(table), ignoreNullable=True)
