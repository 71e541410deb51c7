"""Report pages: figures, missing and stale figures, lineage, CSV files, permissions and queries."""

import csv
import io
import re
from datetime import date, timedelta
from html import escape, unescape
from math import sqrt
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from pushserver.console.reports.formats import milliseconds, percent, wilson
from pushserver.console.reports.panels import PAGES
from pushserver.console.reports.sentences import MANY, compared
from spark_reports.models import Anomaly, FailureSignature, PublishedDay, ReportRun
from spark_reports.nights import status
from spark_reports.running import parts
from tests.rig import reports
from tests.rig.budget import combinations

pytestmark = pytest.mark.django_db
DAY = date(2026, 11, 20)
REPORTS = "/admin/reports/"
every_report = pytest.mark.parametrize("slug", PAGES)
SHOWN = {
    "error-rates": ["5.0 %", "2.7 % to 9.0 %", "unregistered", "+1.00"],
    "token-churn": ["1,015", "2.0 %"],
    "token-lifetime": ["96.0 %", "84.0 %", "94.0 % to 98.0 %"],
    "latency": ["87 ms", "1.2 s", "98.7 %"],
    "failure-signatures": ["=HYPERLINK(x)", "42", "new"],
    "load-profile": ["21.0 %", "1.10", "0123456789abcdef"],
}


def html_of(client: Client, path: str, **query: Any) -> str:
    response = client.get(REPORTS + path, query)
    assert response.status_code == 200, response.status_code
    return response.content.decode()


def log_in(client: Client, role: str) -> Client:
    user = User.objects.create_user(role, is_staff=True)
    user.groups.add(*Group.objects.filter(name=role))
    client.force_login(user)
    return client


# Figures --------------------------------------------------------------------------------------------------------------
@every_report
def test_a_report_shows_its_figures_as_chart_and_table(admin_client, slug):
    for days_ago in range(3):
        reports.make_night(DAY - timedelta(days=days_ago))

    html = html_of(admin_client, f"{slug}/")

    for figure in SHOWN[slug]:
        assert figure in html
    charts = re.findall(r"<canvas.*?</div>", html, re.DOTALL)
    assert charts
    assert all("<caption>" in chart and re.search(r'data-value="\d', chart) for chart in charts)
    assert html.count("<caption>") > len(charts)


def test_failures_are_summed_over_platforms_and_apps(admin_client):
    reports.publish(DAY)
    for place, failed, total in (({}, 10, 200), ({"platform": "android", "app_topic": ""}, 5, 100)):
        reports.make_rate(DAY, events=failed, total=total, **place)
        reports.make_rate(DAY, events=total - failed, total=total, is_failure=False, outcome="success", **place)

    html = html_of(admin_client, "error-rates/")
    only_android = html_of(admin_client, "error-rates/", platform="android")

    low, high = wilson(15, 300)
    assert f"{percent(low)} to {percent(high)}" in html
    assert re.search(r'class="figure">300</td><td class="figure">15</td><td class="figure">5.0 %', html)
    assert re.search(r'class="figure">100</td><td class="figure">5</td><td class="figure">5.0 %', only_android)


@pytest.mark.parametrize(
    ("slug", "shown"),
    [
        ("error-rates", ["1,111", "2,222", "3,333"]),  # the last one is the sum
        ("token-churn", ["1,111", "2,222", "3,333"]),
        ("token-lifetime", ["1,111", "2,222"]),
        ("latency", ["3,333"]),  # the row of all bridges together, which is no sum
    ],
)
def test_a_page_can_be_narrowed_to_one_bridge(admin_client, slug, shown):
    reports.publish(DAY)
    for bridge, number in (("waku", 1111), ("xmpp", 2222)):
        reports.make_rate(DAY, bridge=bridge, events=number, total=number)
        reports.make_churn(DAY, bridge=bridge, active_at_start=number)
        reports.make_lifetime(DAY, bridge=bridge, tokens=number)
        reports.make_latency(DAY, bridge=bridge, events=number)
    reports.make_latency(DAY, events=3333)

    html, of_xmpp = html_of(admin_client, f"{slug}/"), html_of(admin_client, f"{slug}/", bridge="xmpp")

    assert [figure for figure in ("1,111", "2,222", "3,333") if f">{figure}<" in html] == shown
    assert ">2,222<" in of_xmpp
    assert ">1,111<" not in of_xmpp


@pytest.mark.parametrize(
    ("slug", "names"),
    [("error-rates", "dispatch query"), ("latency", "answer reply"), ("load-profile", "recipient sender")],
)
def test_the_newest_day_is_first_and_has_its_rows_in_the_order_of_the_legend(admin_client, slug, names):
    days = [DAY - timedelta(days=1), DAY]
    for day in days:
        reports.publish(day)
        for stage in ("query", "dispatch"):
            reports.make_rate(day, stage=stage)
        for stage in ("reply", "answer"):
            reports.make_latency(day, stage=stage)
        for role in ("sender", "recipient"):
            reports.make_load(day, role=role)

    found = re.findall(r'<th scope="row">(20[\d-]+)</th><td>(\w+)</td>', html_of(admin_client, f"{slug}/"))
    assert found[:4] == [(str(day), name) for day in reversed(days) for name in names.split()]


@pytest.mark.parametrize(("events", "total"), [(10, 200), (1, 7), (499, 500)])
def test_the_interval_of_sums_is_wilsons_and_needs_events(events, total):
    """Each end of the interval is a true rate from which the observed one is 1.96 standard errors away."""
    for end in wilson(events, total):
        assert end is not None
        assert abs(end - events / total) == pytest.approx(1.959964 * sqrt(end * (1 - end) / total), rel=1e-5)
    assert (wilson(0, total)[0], wilson(0, 0)) == (0, (None, None))


@pytest.mark.parametrize(
    ("shown_by", "values"),
    [
        (percent, {0: "0.0 %", 0.5: "50.0 %", 0.00123: "0.12 %", 0.000034: "0.0034 %", None: "-"}),
        (milliseconds, {0: "0 ms", 999.4: "999 ms", 1500: "1.5 s", 3_600_000: "60 min"}),
    ],
)
def test_small_rates_keep_their_digits_and_durations_have_the_unit_that_fits(shown_by, values):
    assert {value: shown_by(value) for value in values} == values


# Sentences ------------------------------------------------------------------------------------------------------------
WEEK = "in the week before"
SENTENCES = {
    "error-rates": f"5.0 % of 200 pushes failed, about as many as {WEEK}.",
    "token-churn": f"2.0 % of 1,000 device tokens were lost, about as many as {WEEK}; 35 came and 20 went.",
    "token-lifetime": "84.0 % of device tokens live for 4 weeks or longer, about as many as a week before.",
    "latency": f"Half of 321 requests were answered within 87 ms, and 99 % within 1.2 s, about as long as {WEEK}.",
    "failure-signatures": "No failure is new or rising, and there were about as many as on a day "
    f"{WEEK}: most of all =HYPERLINK(x) (42 times).",
    "load-profile": f"1 % of the recipients had 21.0 % of the notifications, about as much as {WEEK}; "
    "each push took 1.10 attempts.",
}


@every_report
def test_a_report_without_anomalies_begins_with_a_sentence_that_compares_it_with_last_week(admin_client, slug):
    for days_ago in range(8):
        reports.make_night(DAY - timedelta(days=days_ago))
    Anomaly.objects.all().delete()
    FailureSignature.objects.update(is_new=False, is_rising=False)

    html = html_of(admin_client, f"{slug}/")

    assert f'<p class="verdict">{SENTENCES[slug]}</p>' in html
    assert f"<dd>{SENTENCES[slug]}</dd>" in html_of(admin_client, "")


@pytest.mark.parametrize(
    ("slug", "sentence"),
    [
        ("error-rates", "30.0 % of pushes failed, 6 times as many as usual: unregistered of im.status.ethereum."),
        (
            "token-churn",
            "4.0 % of the device tokens of im.status.ethereum were lost, twice as many as usual: most unre",
        ),
        ("failure-signatures", "1 failure is new: most of all =HYPERLINK(x) (42 times)."),
    ],
)
def test_a_report_begins_with_what_is_most_unusual(admin_client, slug, sentence):
    reports.make_night(DAY)
    reports.make_anomaly(DAY, events=10, total=20, stage="reply")  # of fewer events
    reports.make_anomaly(DAY, figure="churn_rate", stage="churn", value=0.04, usual=0.02)

    html = html_of(admin_client, f"{slug}/")

    assert f'<p class="verdict">{sentence}' in html


def sentence_of(client: Client, slug: str) -> str:
    return re.findall(r'<p class="verdict">(.*?)</p>', html_of(client, f"{slug}/"))[0]


def test_sentences_of_a_first_day_with_one_of_each(admin_client):
    reports.publish(DAY)
    reports.make_rate(DAY, events=1, total=1, rate=1)
    reports.make_churn(DAY, active_at_start=0, churn_rate=None, new=1, returned=0, unregistered=0, died=0)
    reports.make_latency(DAY, events=1, p50_ms=87, p99_ms=87)
    reports.make_signature(DAY, events=1, is_new=False, is_rising=False, known_days=0)

    alone = "with no earlier days to compare with"
    assert sentence_of(admin_client, "error-rates") == f"100.0 % of 1 push failed, {alone}."
    assert sentence_of(admin_client, "token-churn") == "The day began without device tokens; 1 came and 0 went."
    assert sentence_of(admin_client, "latency") == f"1 request was answered within 87 ms, {alone}."
    assert sentence_of(admin_client, "failure-signatures") == f"1 failure, {alone}: most of all =HYPERLINK(x) (1 time)."


def test_days_without_failures_count_in_what_failures_are_compared_with(admin_client):
    for days_ago in range(8):
        reports.publish(DAY - timedelta(days=days_ago))
    for days_ago in (0, 3):
        reports.make_signature(DAY - timedelta(days=days_ago), events=70, is_new=False, is_rising=False)
    assert f"there were 7 times as many as on a day {WEEK}" in sentence_of(admin_client, "failure-signatures")


@pytest.mark.parametrize(("value", "words"), [(0.55, "more than usual"), (0.45, "fewer than usual")])
def test_an_unusual_figure_is_not_about_as_usual(admin_client, value, words):
    reports.make_night(DAY)
    Anomaly.objects.update(value=value, usual=0.5)
    assert f" failed, {words}" in sentence_of(admin_client, "error-rates")


@pytest.mark.parametrize(
    ("value", "usual", "words"),
    [
        *((3.1, 1.5, "twice as many as usual"), (9, 1, "9 times as many as usual"), (1, 0, "more than usual")),
        *((1.5, 1, "half as many again as usual"), (1, 1, "about as many as usual"), (0, 0, "about as many as usual")),
        *((0.5, 1, "fewer than usual"), (1, None, "with no earlier days to compare with")),
    ],
)
def test_a_figure_is_compared_in_words(value, usual, words):
    assert compared(value, usual, MANY, "usual") == words


# Missing and doubtful figures -----------------------------------------------------------------------------------------
@every_report
def test_a_page_without_rows_says_whether_reports_are_missing(admin_client, slug):
    html = html_of(admin_client, f"{slug}/")
    assert "No data yet" in html
    assert "There is no data for" in html
    assert "The first reports come after" in html
    assert '<svg class="plot"' not in html

    reports.publish(DAY)
    html = html_of(admin_client, f"{slug}/", **{"from": DAY, "to": DAY})
    assert "have no rows for these filters" in html
    assert "have no reports" not in html


def test_a_missing_part_is_reported_once_with_the_one_command(admin_client, settings, monkeypatch):
    monkeypatch.setattr(parts, "PACKAGES", {"no_such_module": "PySpark"})
    assert "<code>make install-reports</code> brings them" in html_of(admin_client, "")
    assert "make run" not in html_of(admin_client, "")
    status.LACK.save(parts.missing())
    for path in ("", "latency/"):
        assert html_of(admin_client, path).count("PySpark is not installed") == 1

    settings.DEMONSTRATION = True
    assert "<code>make run</code> then shows two weeks" in html_of(admin_client, "")


def test_a_gap_is_shown_with_a_link_that_closes_it_to_those_who_may(admin_client):
    reports.make_night(DAY)
    reports.make_night(DAY - timedelta(days=3))
    query = {"from": DAY - timedelta(days=3), "to": DAY}
    for client, may in ((admin_client, True), (log_in(Client(), "support"), False)):
        html = html_of(client, "latency/", **query)
        assert "2 of 4 days have no reports" in html
        link = f"{REPORTS}run/?from={DAY - timedelta(days=2)}&amp;to={DAY - timedelta(days=1)}"
        assert (link in html, f"{REPORTS}run/" in html) == (may, may)


@every_report
def test_findings_and_stale_days_are_shown_above_the_figures(admin_client, slug):
    for days_ago in (2, 1, 0):
        reports.make_night(DAY - timedelta(days=days_ago))
    reports.make_check(DAY)
    reports.make_check(DAY, check_name="reconciliation", subject="ios im.status.ethereum", expected=1015, found=1000)
    reports.make_check(DAY, check_name="timestamps", is_ok=True)
    renewed = PublishedDay.objects.filter(day=DAY - timedelta(days=1))
    renewed.update(renewed_at=timezone.now() + timedelta(seconds=1))

    html = html_of(admin_client, f"{slug}/", **{"from": DAY - timedelta(days=2), "to": DAY})

    assert html.index("Read with care") < html.index("<caption>")
    assert "attempts: rows were lost or doubled on the way (expected 10, found 9)" in html
    assert "the flows of device tokens do not add up (expected 1,015, found 1,000)" in html
    assert "their times are absurd" not in html
    assert "2 of 3 days are stale" in html
    assert html.index("2026-11-19, 2026-11-20") < html.index("<caption>")
    assert "These reports are stale" in html_of(admin_client, "", day=DAY)
    assert "These reports are stale" not in html_of(admin_client, "", day=DAY - timedelta(days=2))


def test_findings_of_a_kind_are_one_line_with_the_newest_of_them(admin_client):
    for days_ago in range(3):
        reports.make_night(DAY - timedelta(days=days_ago))
        reports.make_check(DAY - timedelta(days=days_ago), expected=100 + days_ago)
    reports.make_check(DAY, check_name="continuity", subject="device tokens")

    html, night = html_of(admin_client, "latency/"), html_of(admin_client, "")

    assert len(re.findall(r"<li>20\d\d-", html)) == 2
    assert f"{DAY} attempts: rows were lost or doubled on the way (expected 100, found 9), and 2 more like it" in html
    assert "2 checks of the data failed." in night
    assert "more like it" not in night


# Lineage --------------------------------------------------------------------------------------------------------------
@every_report
def test_a_page_names_the_facts_and_the_code_of_its_days(admin_client, slug):
    reports.make_night(DAY, facts_digest="0123456789abcdef" * 4, code_version="0.2.0 fedcba987654")
    reports.make_night(DAY - timedelta(days=1))  # a day from before lineage was stored

    report, night = html_of(admin_client, f"{slug}/"), html_of(admin_client, "")

    for html in (report, night):
        assert "0123456789ab" in html
        assert "0.2.0 fedcba987654" in html
    assert "Where these figures come from" in report


@pytest.mark.parametrize("path", ["", *(f"{slug}/" for slug in PAGES)])
def test_every_page_of_made_up_reports_says_so_and_none_of_real_ones(admin_client, path):
    reports.make_night(DAY, is_made_up=True)
    html = html_of(admin_client, path)
    assert "Nothing of it happened on this server" in html
    assert "Make them again" not in html
    assert 'filename="made-up-latency-' in admin_client.get(f"{REPORTS}latency.csv")["Content-Disposition"]

    PublishedDay.objects.update(is_made_up=False)
    assert "Made up" not in html_of(admin_client, path)
    assert 'filename="latency-' in admin_client.get(f"{REPORTS}latency.csv")["Content-Disposition"]


# Wrong addresses ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("slug", "query"),
    combinations(
        [*PAGES],
        [
            *({"from": "nonsense"}, {"to": "2026-13-45"}, {"from": "0001-01-01"}, {"to": "0001-01-01"}),
            *({"to": "9999-12-31"}, {"from": "9999-12-31", "to": "9999-12-31"}),
            *({"from": "2026-11-20", "to": "2026-11-01"}, {"from": "1990-01-01", "to": "2026-11-20"}),
            {"platform": "x" * 5000, "stage": "'; --", "app_topic": "\x00"},
            {"platform": ["ios", "android"], "from": ["", "x"]},
        ],
    ),
)
def test_a_wrong_value_in_an_address_is_no_error(admin_client, slug, query):
    reports.make_night(DAY)
    for page in (f"{slug}/", f"{slug}.csv"):
        assert admin_client.get(f"{REPORTS}{page}", query).status_code == 200


def test_a_wrong_address_is_no_error(admin_client):
    for day in ("nonsense", "0001-01-01", "9999-12-31", "2026-02-30", ""):
        assert admin_client.get(REPORTS, {"day": day}).status_code == 200
    for file in ("nonsense/", "nonsense.csv", "error-rates.csv?table=heavy-actors"):
        assert admin_client.get(f"{REPORTS}{file}").status_code == 404
    assert "after the last" in html_of(admin_client, "latency/", **{"from": "2026-11-20", "to": "2026-11-01"})
    assert "92 days at most" in html_of(admin_client, "latency/", **{"from": "2020-11-20", "to": "2026-11-01"})


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "<script>alert(1)</script>"])
def test_no_text_of_a_gateway_becomes_markup_or_a_formula_of_a_csv_file(admin_client, text):
    reports.publish(DAY)
    reports.make_signature(DAY, signature=text)
    assert "<script>alert" not in html_of(admin_client, "failure-signatures/")
    assert escape(text) in html_of(admin_client, "failure-signatures/")
    head, row = csv_of(admin_client, "failure-signatures")
    assert row[head.index("signature")] == ("" if text[0] == "<" else "'") + text


# CSV ------------------------------------------------------------------------------------------------------------------
def csv_of(client: Client, slug: str, **query: Any) -> list[list[str]]:
    response = client.get(f"{REPORTS}{slug}.csv", query)
    assert response.streaming
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.reader(io.StringIO(b"".join(response.streaming_content).decode())))


@every_report
def test_the_csv_file_has_every_column_and_row_of_the_days(admin_client, slug):
    """Error rates of hours are in the file though not in the table, and figures below zero stay figures."""
    reports.make_night(DAY)
    reports.make_night(DAY - timedelta(days=1))
    reports.make_rate(DAY, stage="query", change=-0.01)

    head, *body = csv_of(admin_client, slug, **{"from": DAY, "to": DAY})

    model = PAGES[slug].model
    assert head == ["day", *model.table.column_names]
    assert len(body) == model.objects.filter(day=DAY).count() > 0
    assert {row[0] for row in body} == {str(DAY)}
    if slug == "error-rates":
        assert {row[1] for row in body} == {"", "7"}
        assert "-0.01" in {row[head.index("change")] for row in body}


@pytest.mark.parametrize(("slug", "table"), [(slug, table) for slug, page in PAGES.items() for table in page.beside])
def test_a_table_beside_a_report_has_a_csv_file_with_the_same_filters(admin_client, slug, table):
    number = {"error-rates": 1, "token-churn": 2, "load-profile": 1}[slug]
    reports.make_night(DAY)
    reports.make_night(DAY - timedelta(days=1))
    for stage in ("churn", "answer"):
        reports.make_anomaly(DAY, figure="churn_rate", stage=stage)

    link = re.search(rf'href="({REPORTS}{slug}.csv\?table={table}&[^"]*)"', html_of(admin_client, f"{slug}/"))
    assert link
    assert b"".join(admin_client.get(unescape(link[1])).streaming_content)
    head, *body = csv_of(admin_client, slug, **{"table": table, "from": DAY, "to": DAY})
    assert len(body) == number
    assert head[0] == "day"


def test_a_filter_that_leaves_no_anomaly_leaves_none_in_the_csv_file(admin_client):
    reports.make_night(DAY)
    reports.make_rate(DAY, stage="query")
    assert len(csv_of(admin_client, "error-rates", table="anomalies", stage="dispatch")) == 2
    assert len(csv_of(admin_client, "error-rates", table="anomalies", stage="query")) == 1


# Permissions and queries ----------------------------------------------------------------------------------------------


@every_report
def test_more_days_cost_no_more_queries(admin_client, slug):
    counts = []
    for days in (1, 20):
        for days_ago in range(days):
            PublishedDay.objects.filter(day=DAY - timedelta(days=days_ago)).delete()
            reports.make_night(DAY - timedelta(days=days_ago))
        admin_client.get(f"{REPORTS}{slug}/")
        with CaptureQueriesContext(connection) as queries:
            html_of(admin_client, f"{slug}/", **{"from": DAY - timedelta(days=30), "to": DAY})
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 27


@pytest.mark.parametrize(("slug", "figure"), [("error-rates", "error_rate"), ("token-churn", "churn_rate")])
def test_flags_stand_on_the_page_of_their_report(admin_client, slug, figure):
    reports.publish(DAY)
    reports.make_rate(DAY)
    reports.make_churn(DAY)
    reports.make_anomaly(DAY, figure=figure, z_score=12.5)
    reports.make_anomaly(DAY, figure="another", z_score=99.9)
    html = html_of(admin_client, f"{slug}/")
    line = {"error_rate": "dispatch", "churn_rate": "churn rate"}[figure]
    assert re.findall(r'data-first="13" data-last="13" data-line="([^"]*)">11-20 dispatch ios', html) == [line]
    assert '<details class="folded" open><summary>Unusual</summary>' in html
    assert html.count("usually 0.0 % to 12.0 %") == 1
    assert "12.5" not in html


# The night ------------------------------------------------------------------------------------------------------------
def test_the_night_shows_flags_with_the_figures_behind_them(admin_client):
    reports.make_night(DAY)
    reports.make_check(DAY)

    html = html_of(admin_client, "")

    headline = "30.0 % of pushes failed, 6 times as many as usual: unregistered of im.status.ethereum. "
    assert f"{headline}1 check of the data failed.</p>" in html
    for figure in ("30.0 %", "5.0 %", "0.0 % to 12.0 %", "rows were lost or doubled", "1,015", "87 ms"):
        assert figure in html


def test_the_page_of_a_night_is_addressed_by_its_day(admin_client):
    reports.make_night(DAY)
    reports.publish(DAY - timedelta(days=1))
    assert "complete and empty" in html_of(admin_client, "", day=DAY - timedelta(days=1))
    assert "There are no reports of 2026-01-02" in html_of(admin_client, "", day="2026-01-02")
    page = html_of(admin_client, "error-rates/", **{"from": DAY - timedelta(days=13), "to": DAY})
    assert "days have no reports" not in page  # days before the first reports are not missed


# The first nights -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("usual_days", "knows_usual"), [(2, False), (3, True)])
def test_a_night_of_which_the_usual_is_not_known_says_so_and_highlights_failing_stages(
    admin_client, usual_days, knows_usual
):
    reports.publish(DAY)
    failed = {"events": 368, "total": 1000, "rate": 0.368, "usual_days": usual_days}
    reports.make_rate(DAY, **failed | ({} if knows_usual else {"usual_rate": None}))
    reports.make_rate(DAY, **failed | {"outcome": "success", "code": "", "is_failure": False, "events": 632})
    page = html_of(admin_client, "", day=DAY)

    assert "36.8 % of 1,000 pushes failed, with no earlier days to compare with." in page
    assert ("What is usual is not known yet: 2 of 7 days." in page) is not knows_usual
    assert ("while nothing is known to be usual" in page) is not knows_usual


# Runs -----------------------------------------------------------------------------------------------------------------
def test_runs_are_listed_with_counts_duration_and_log(admin_client):
    now = timezone.now()
    run = reports.make_run(
        DAY, started_at=now - timedelta(seconds=75), event_count=1_234_567, finding_count=3, error="Spark failed: x",
        state=ReportRun.State.FAILED, log_excerpt="<b>the end</b>", compute_seconds=61.5, is_made_up=True,
    )  # fmt: skip
    runs = "/admin/spark_reports/reportrun/"
    listed = admin_client.get(runs).content.decode()
    page = admin_client.get(f"{runs}{run.pk}/change/").content.decode()

    for html in (listed, page):
        for words in ("1,234,567", "75 s", "Spark failed: x", "(made up)"):
            assert words in html
    assert "compute 62 s" in page
    assert "&lt;b&gt;the end&lt;/b&gt;" in page
    assert f"{REPORTS}run/?from={DAY}&amp;to={DAY}" in page


def test_one_day_is_drawn_by_hour_or_has_a_table_and_no_chart(admin_client):
    reports.make_night(DAY)
    one, two = {"from": DAY, "to": DAY}, {"from": DAY - timedelta(days=1), "to": DAY}
    html = html_of(admin_client, "error-rates/", **one)
    assert "Share of failures by hour and stage" in html
    assert "07:00" in html
    assert "Churn rate by day" not in html_of(admin_client, "token-churn/", **one)
    assert "<caption>Churn by day</caption>" in html_of(admin_client, "token-churn/", **one)
    assert "Churn rate by day" in html_of(admin_client, "token-churn/", **two)
