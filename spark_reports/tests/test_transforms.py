"""Each job on frames of a few rows, compared with figures worked out on paper."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

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
from spark_reports.jobs.reports.statistics import median_of, scale, with_usual
from spark_reports.jobs.sources import is_within_day, local_rows, schema_of
from spark_reports.jobs.tables import Table, Type

DAY = date(2026, 11, 20)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
YESTERDAY = DAY - timedelta(days=1)
_BY_TYPE: dict[Type, Any] = {Type.TIMESTAMP: NOON, Type.DATE: DAY, Type.STRING: "", Type.BOOLEAN: False}
_BY_TYPE |= {Type.INT: 0, Type.LONG: 0, Type.DOUBLE: 0.0}
_BY_NAME: dict[str, Any] = {"platform": "ios", "previous_platform": "ios", "bridge": "waku"}
_BY_NAME |= {"number": 1, "deadline_us": 2_000_000, "is_complete": True}


def frame(spark: Any, table: Table, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a frame of a few rows. A test names only the columns that matter, and all others have defaults."""
    defaults = {c.name: None if c.is_nullable else _BY_NAME.get(c.name, _BY_TYPE[c.type]) for c in table.columns}
    defaults["day"] = DAY
    for row in rows:
        assert row.keys() <= defaults.keys(), row
    schema = schema_of(table)
    return spark.createDataFrame([tuple((defaults | dict(row))[name] for name in schema.names) for row in rows], schema)


def rows_of(result: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Return the chosen columns of every row, sorted."""
    return sorted((tuple(row) for row in result.select(*columns).collect()), key=repr)


def apart(*cases: tuple[Any, ...]) -> dict[date, tuple[Any, ...]]:
    """Return each case under a day of its own, so that one run of a job computes all and none looks back to another."""
    return {DAY + timedelta(days=400 * number): case for number, case in enumerate(cases)}


# error_rates ----------------------------------------------------------------------------------------------------------
def outcomes(spark: Any, **facts: Any) -> Any:
    names = (tables.ENVELOPES, tables.NOTIFICATIONS, tables.ATTEMPTS, tables.REPLIES)
    return error_rates.count_outcomes(*[frame(spark, table, facts.get(table.name, [])) for table in names]).cache()


def error_rates_of(spark: Any, earlier: Any = (), **facts: Any) -> Any:
    return error_rates.transform(outcomes(spark, **facts), frame(spark, tables.ERROR_RATES, earlier)).cache()


def test_every_event_counts_in_its_stage_with_outcome_and_code(spark):
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
            {"type": "contact_code_advertisement", "state": "processed"},  # it requests nothing
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
        ("inbox", "none", "read", "", False, 1),
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


def test_a_label_that_this_version_does_not_know_counts_as_unknown(spark):
    """A state of a later version is neither accepted nor a failure, and an end of a later version is no death."""
    new = {"state": "of tomorrow"}
    facts = {"envelopes": [new | {"type": "query"}], "notifications": [new], "replies": [new]}
    counted = outcomes(spark, attempts=[{"outcome": "of tomorrow"}], **facts)
    events = frame(spark, tables.REGISTRATION_EVENTS, [{"kind": "of tomorrow", "was_active": True}])
    active = frame(spark, tables.ACTIVE_TOKENS, [{"at_start": 1, "at_end": 0}])

    assert {(row.outcome, row.is_failure) for row in counted.collect()} == {("unknown", False)}
    assert rows_of(token_churn.transform(events, active), "died", "unexplained") == [(0, 1)]
    assert data_quality.count_all({"registration_events": events}).first()["unknown"] == 1


def test_a_rate_is_compared_with_the_same_hour_of_the_days_before(spark):
    cases = apart(
        # Those days had traffic, and no dead token.
        ({1: 0.98, 2: 0.99, 3: 0.97, 8: 0.10}, (0.98, pytest.approx(-0.48)), (0.0, 0.5)),
        ({1: 0.9, 2: 0.9}, (None, None), (None, None)),  # two days are too few
    )
    cell = {"stage": "dispatch", "outcome": "delivered", "hour": 12, "total": 100, "events": 1}
    earlier, attempts = [], []
    for day, (before, _, _) in cases.items():
        earlier += [cell | {"day": day - timedelta(days=n), "rate": rate} for n, rate in before.items()]
        attempts += [{"day": day, "outcome": "delivered"}, {"day": day, "outcome": "dead"}]

    rates = error_rates_of(spark, earlier, attempts=attempts).where("hour = 12")

    columns = ("usual_rate", "change")
    assert rows_of(rates.where("outcome = 'delivered'"), "day", *columns) == [
        (day, *delivered) for day, (_, delivered, _) in cases.items()
    ]
    found = rows_of(rates.where("outcome = 'dead'"), "day", *columns, "z_score")
    assert [(*compared, (z_score or 0) > 0) for *compared, z_score in found] == [
        (day, *dead, dead[0] is not None) for day, (_, _, dead) in cases.items()
    ]


# anomalies ------------------------------------------------------------------------------------------------------------
def test_an_error_rate_outside_its_usual_band_is_flagged_with_its_numbers(spark):
    cases = apart(
        ({"waku": 90}, 1000, [("error_rate", "dispatch", "waku", 90, 1000, 0.09, 0.021)]),
        ({"waku": 30}, 1000, []),
        ({"waku": 40}, 45, []),  # few events
        # Each bridge is compared with itself.
        ({"waku": 300, "xmpp": 300}, 1000, [("error_rate", "dispatch", "waku", 300, 1000, 0.3, 0.021)]),
    )

    def of_day(day: date, bridge: str, events: int, total: int) -> list[dict[str, Any]]:
        cell = {"day": day, "stage": "dispatch", "total": total, "bridge": bridge}
        failed = cell | {"outcome": "dead", "is_failure": True, "events": events}
        return [failed, cell | {"outcome": "delivered", "is_failure": False, "events": total - events}]

    usual, today, earlier = {"waku": 20, "xmpp": 300}, [], []
    for day, (failures, total, _) in cases.items():
        for bridge, events in failures.items():
            today += of_day(day, bridge, events, total)
            for n in range(1, 8):
                earlier += of_day(day - timedelta(days=n), bridge, usual[bridge] + n % 3, total)
    nothing = frame(spark, tables.TOKEN_CHURN, [])
    rates = (frame(spark, tables.ERROR_RATES, rows) for rows in (today, earlier))
    flagged = anomalies.transform(*rates, nothing, nothing)

    assert rows_of(flagged, "day", "figure", "stage", "bridge", "events", "total", "value", "usual") == [
        (day, *row) for day, (_, _, found) in cases.items() for row in found
    ]


def test_a_churn_rate_outside_its_usual_band_is_flagged(spark):
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


def test_tokens_that_do_not_reconcile_are_unexplained(spark):
    died = {"kind": "token_died", "was_active": True}
    events = frame(spark, tables.REGISTRATION_EVENTS, [died, {"kind": "unregistered"}])  # its token had died before
    active = frame(spark, tables.ACTIVE_TOKENS, [{"at_start": 4, "at_end": 2}, {"at_start": 6, "at_end": 6}])

    columns = ("active_at_start", "died", "unregistered", "active_at_end", "unexplained", "churn_rate", "net_growth")
    assert rows_of(token_churn.transform(events, active), *columns) == [(10, 1, 0, 8, 1, 0.1, -2)]


# token_lifetime -------------------------------------------------------------------------------------------------------


def test_a_cohort_that_began_before_the_history_is_marked(spark):
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


@pytest.mark.parametrize(
    ("facts", "where", "columns", "rows"),
    [
        (
            {"attempts": [{"latency_us": 10_000}, {"latency_us": 30_000, "bridge": "xmpp"}]},
            "platform = 'ios' OR bridge = 'all'",
            ["platform", "bridge", "events", "p50_ms"],
            [("all", "all", 2, 20.0), ("ios", "all", 2, 20.0), ("ios", "waku", 1, 10.0), ("ios", "xmpp", 1, 30.0)],
        ),
        (  # the deadline itself is within it
            {"notification_times": [{"answered_us": us} for us in (1, 2_000_000, 2_000_001, 5_000_000)]},
            "platform = 'all' AND bridge = 'all'",
            ["stage", "within_deadline"],
            [("answer", 0.5)],
        ),
        (  # the longest is exact, and a percentile is rounded down to its step: 1.001 s is 1001 ms
            {"envelopes": [{"processed_us": us} for us in (1_001_000, 12_345_678)]},
            "platform = 'all' AND bridge = 'all'",
            ["max_us", "p50_ms"],
            [(12_345_678, (1001 + 12_000) / 2)],
        ),
        (  # implausible durations are left out, and noise between two clocks counts as zero
            {"envelopes": [{"processed_us": us} for us in (-3_000, -5_000_000, -5_000_001, 7_000, 10**15)]},
            "platform = 'none' AND bridge = 'waku'",
            ["stage", "events", "p50_ms", "max_us"],
            [("decide", 3, 0.0, 7_000)],
        ),
    ],
    ids=["by bridge", "deadline", "steps", "implausible"],
)
def test_durations_have_percentiles_by_stage_platform_and_bridge(spark, facts, where, columns, rows):
    assert rows_of(latency_of(spark, **facts).where(where), *columns) == rows


# failure_signatures ---------------------------------------------------------------------------------------------------
def signatures_of(
    spark: Any,
    events: Mapping[tuple[date, str], tuple[int, Mapping[int, int]]],
    known_days: Mapping[date, int],
    *,
    snapshots: Any = (),
    earlier: Any = (),
) -> list[tuple[Any, ...]]:
    """Return the signatures of codes by their events on a day and before it. Another code fails on all these days."""
    failed = {"stage": "dispatch", "outcome": "transient", "is_failure": True}
    rates, rates_before = [], []
    for (day, code), (today, before) in events.items():
        other = failed | {"code": "other", "events": 5}
        rates += [failed | {"day": day, "code": code, "events": today}, other | {"day": day}]
        for n in range(1, 8):
            of_day = {"day": day - timedelta(days=n)}
            rates_before += [failed | of_day | {"code": code, "events": before[n]}] if n in before else []
            rates_before.append(other | of_day)
    found = failure_signatures.transform(
        frame(spark, tables.ERROR_RATES, rates),
        frame(spark, tables.ERROR_RATES, rates_before),
        frame(spark, tables.UNKNOWN_ERRORS, snapshots),
        frame(spark, tables.FAILURE_SIGNATURES, earlier),
        known_days,
    )
    columns = ("source", "signature", "events", "usual_events", "is_new", "is_rising", "first_seen_on")
    return rows_of(found.where("signature <> 'other'"), *columns)


def test_a_code_is_new_or_rising_by_the_days_before(spark):
    """Each code has a day of its own. The last number is that of the days since it was first seen."""
    daily = dict.fromkeys(range(1, 8), 20)
    cases = apart(
        ("a: rising", 40, daily, 30, (40, 20.0, False, True), 7),  # twice as frequent
        ("b: steady", 39, daily, 30, (39, 20.0, False, False), 7),
        ("c: new", 1, {}, 30, (1, 0.0, True, True), 0),
        ("d: no earlier days", 1, {}, 0, (1, 0.0, False, False), 0),
        ("e: in earlier reports", 1, {}, 30, (1, 0.0, False, False), 21),
    )
    events = {(day, code): (today, before) for day, (code, today, before, *_) in cases.items()}
    known_days = {day: known for day, (_, _, _, known, *_) in cases.items()}
    last = max(cases)
    seen = {"day": last - timedelta(days=3), "first_seen_on": last - timedelta(days=21)}
    earlier = [seen | {"source": "code", "signature": "e: in earlier reports"}]

    assert signatures_of(spark, events, known_days, earlier=earlier) == [
        ("code", code, *found, day - timedelta(days=days_ago))
        for day, (code, _, _, _, found, days_ago) in cases.items()
    ]


ONE_CODE = {(DAY, "unavailable"): (1, {})}


def test_the_events_of_an_unknown_text_are_the_growth_of_its_counter(spark):
    seen = datetime(2026, 11, 18, tzinfo=UTC)
    texts = [
        {"day": DAY - timedelta(days=n), "signature": "strange <n>", "total": total, "first_seen_at": seen}
        for n, total in [(2, 3), (1, 10), (0, 42)]
    ]
    [unknown, _] = sorted(signatures_of(spark, ONE_CODE, {DAY: 30}, snapshots=texts), reverse=True)

    assert unknown == ("unknown", "strange <n>", 32, None, False, False, seen.date())


def test_a_day_without_any_attempt_keeps_its_unknown_texts(spark):
    """A gateway may send an error that no rule knows before any attempt of the day has ended."""
    nothing, text = frame(spark, tables.ERROR_RATES, []), {"signature": "strange <n>", "total": 7}
    snapshots = frame(spark, tables.UNKNOWN_ERRORS, [text, text | {"day": YESTERDAY, "total": 4}])
    known = frame(spark, tables.FAILURE_SIGNATURES, [])
    found = failure_signatures.transform(nothing, nothing, snapshots, known, {DAY: 3})

    assert rows_of(found, "day", "source", "signature", "events") == [(DAY, "unknown", "strange <n>", 3)]


def test_an_unknown_text_that_was_not_seen_for_thirty_days_is_new(spark):
    """The counter keeps the first time for longer than reports look back."""
    is_new_by_days_ago = {0: True, 1: False, 30: False, 31: True, 200: True}
    texts, expected = [], {}
    for days_ago, is_new in is_new_by_days_ago.items():
        seen = NOON - timedelta(days=days_ago)
        text = {"day": DAY, "signature": f"strange {days_ago}", "total": 9, "first_seen_at": seen}
        texts += [text, text | {"day": YESTERDAY, "total": 4}] if days_ago else [text]
        expected[text["signature"]] = (is_new, is_new, seen.date())

    found = signatures_of(spark, ONE_CODE, {DAY: 30}, snapshots=texts)
    assert {row[1]: row[4:] for row in found if row[0] == "unknown"} == expected


# load_profile ---------------------------------------------------------------------------------------------------------


def test_the_top_percent_and_retries_of_senders_and_recipients(spark):
    light = {"role": "recipient", "actors": 100, "notifications": 1, "tried": 100, "attempts": 100}
    heavy = {"role": "recipient", "rank": 1, "actors": 1, "notifications": 60, "tried": 50, "attempts": 150}
    sender = {"role": "sender", "rank": 1, "actors": 1, "notifications": 50, "tried": 50, "attempts": 150}
    actors = frame(spark, tables.ACTORS, [light, heavy, sender])

    columns = ("role", "actors", "notifications", "top_actors", "top_share", "tried", "attempts", "retry_amplification")
    assert rows_of(load_profile.transform(actors), *columns) == [
        ("recipient", 101, 160, 2, pytest.approx(61 / 160), 150, 250, pytest.approx(250 / 150)),
        ("sender", 1, 50, 1, 1.0, 50, 150, 3.0),
    ]


def test_the_heaviest_are_named_by_pseudonym_only(spark):
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


# data_quality ---------------------------------------------------------------------------------------------------------
def test_missing_rows_and_implausible_times_are_findings(spark):
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


def test_rows_of_the_plan_start_no_python_on_executors(spark):
    some, none = local_rows(spark, [(DAY.isoformat(), "attempts", 5)], EXPECTED), local_rows(spark, [], EXPECTED)

    assert [tuple(row) for row in some.collect()] == [(DAY, "attempts", 5)]
    assert (none.collect(), none.columns) == ([], EXPECTED.names)
    assert "ExistingRDD" not in some._jdf.queryExecution().executedPlan().toString()
    with pytest.raises(Py4JJavaError, match="MALFORMED_RECORD"):
        local_rows(spark, [(DAY.isoformat(), "attempts", "many")], EXPECTED).collect()


def test_a_report_with_too_few_days_of_history_or_a_lost_row_among_any_number_is_a_finding(spark):
    days = {"error_rates": {DAY.isoformat(): (7, 5)}, "token_churn": {DAY.isoformat(): (7, 6)}}
    assert rows_of(data_quality.history(spark, days), "check_name", "subject", "is_ok", "expected", "found") == [
        ("history", "error_rates", False, 7, 5),
        ("history", "token_churn", True, 7, 6),
    ]
    expected = data_quality.expected_rows(spark, {"attempts": {DAY.isoformat(): 1_000_000}})
    counted = spark.createDataFrame([(DAY, "attempts", 999_999)], "day date, subject string, found long")
    assert rows_of(data_quality.row_counts(expected, counted), "is_ok") == [(False,)]


@pytest.mark.parametrize(("odd", "is_ok"), [(1, True), (2, False)])
def test_a_check_fails_only_above_its_threshold(spark, odd, is_ok):
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


def test_noise_between_two_clocks_is_plausible(spark):
    envelopes = [{"type": "query", "state": "processed", "processed_us": us} for us in (-5_000_000, -5_000_001, 7_000)]
    assert data_quality.count_all({"envelopes": frame(spark, tables.ENVELOPES, envelopes)}).first()["absurd"] == 1


def test_rows_outside_of_their_day_are_not_counted(spark):
    times = [NOON.replace(hour=0) + timedelta(microseconds=us) for us in (-1, 0, 86_400 * 10**6)]
    assert frame(spark, tables.ATTEMPTS, [{"at": at} for at in times]).where(is_within_day()).count() == 1


# statistics -----------------------------------------------------------------------------------------------------------


def test_the_median_of_an_array(spark):
    medians = [([], None), ([3.0], 3.0), ([4.0, 1.0], 2.5), ([9.0, 1.0, 2.0], 2.0)]
    arrays = spark.createDataFrame([(values,) for values, _ in medians], "numbers array<double>")
    assert [median for (median,) in arrays.select(median_of(F.col("numbers"))).collect()] == [m for _, m in medians]


def test_the_usual_value_is_that_of_the_seven_days_before(spark):
    rates = {-8: 0.9, -7: 0.1, -3: 0.2, -1: 0.4, 0: 0.8, 1: 0.9}
    history = [(DAY + timedelta(days=n), "a", rate) for n, rate in rates.items()]
    by_day = spark.createDataFrame(history, "day date, key string, rate double")

    rows = with_usual(by_day, by_day, ["key"], "rate").select("day", "usual", "deviation").collect()
    known = {(row.day - DAY).days: (row.usual, row.deviation) for row in rows}

    assert (known[0], known[1]) == ((0.2, pytest.approx(0.1)), (0.4, pytest.approx(0.2)))
    assert (known[-1], known[-3]) == ((0.2, pytest.approx(0.1)), (None, None))


def test_a_rate_that_was_always_zero_has_a_scale(spark):
    zero = spark.createDataFrame([(0.0, 0.0, 100)], "usual double, deviation double, total bigint")
    [[value]] = zero.select(scale(F.col("usual"), F.col("deviation"), F.col("total"))).collect()
    assert value == pytest.approx((0.5 / 101 * (1 - 0.5 / 101) / 100) ** 0.5)
