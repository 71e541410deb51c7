from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from notifications.standstill import Switch
from pushserver.state.facts import (
    Facts,
    Failed,
    Peer,
    Queue,
    Reports,
    RoundTrip,
    Store,
    Trouble,
    Waiting,
    Xmpp,
)
from pushserver.state.lights import Finding, Group, Level, Page, duration, lights, verdict, worst

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RED, YELLOW, GREEN, GREY, OFF = Level.RED, Level.YELLOW, Level.GREEN, Level.GREY, Level.OFF
TROUBLE = Trouble("the clock is wrong", "Run NTP.", NOW - timedelta(hours=1))
NODE, OTHER = Peer("a:1", is_up=True), Peer("b:1", is_up=True)
GORUSH = Peer("g:1", is_up=True)
RUNNING = Switch("running", "APN app", "", "", NOW)
TRIPPED = Switch("tripped", "APN old", "", "refused", NOW)
PAUSED = Switch("paused", "APN beta", "bea", "", NOW)
DRAIN = Switch("drained", "", "ann", "gorush moves", NOW)
WAS_RED, WAS_YELLOW = {"results": Level.RED}, {"results": Level.YELLOW}


def tried(channel: str = "APN app", **counts: int) -> dict[tuple[str, str, str], int]:
    """Attempts of one channel by outcome, with a code where they did not deliver."""
    return {(channel, outcome, "" if outcome == "delivered" else "x"): number for outcome, number in counts.items()}


WELL = Facts(
    now=NOW,
    reasons={"database": "", "broker": "", "node": "", "gorush": "", "worker": ""},
    queues=[Queue("batches", True), Queue("maintenance", True), Queue("reports", True, is_needed=False)],
    counted_until=NOW - timedelta(seconds=40),
    nodes=[NODE],
    stores=[Store("a:1", NOW - timedelta(seconds=7))],
    gorush=[GORUSH],
    tries=tried(delivered=100),
    switches=[RUNNING, RUNNING],
    replies=100,
    is_canary_expected=True,
    canary=RoundTrip(NOW, is_broken=False, words="every link of the chain holds", total_ms=800),
    reports=Reports(is_off=False, is_missing=False, words="The reports of 2026-11-20 are here."),
)


def test_without_a_component_there_is_no_light_of_xmpp() -> None:
    assert "xmpp" not in {light.id for light in lights(WELL)}


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def one(light_id: str, **facts: Any) -> Finding:
    (found,) = [light.finding for light in lights(replace(WELL, **facts)) if light.id == light_id]
    return found


def test_when_all_is_well_every_light_is_green() -> None:
    assert {light.finding.level for light in lights(WELL)} == {GREEN}
    assert verdict(lights(WELL)) == Finding(GREEN, "Messages get through, and nothing needs you")
    assert worst(lights(WELL)) == []


def test_every_light_has_an_id_of_its_own() -> None:
    ids = [
        light.id for light in lights(replace(WELL, nodes=[NODE, OTHER], stores=[Store("a:1", NOW), Store("b:1", NOW)]))
    ]
    assert len(ids) == len(set(ids))


def test_what_is_bad_says_what_to_do_about_it_and_where() -> None:
    for _, _, _, facts in CASES:
        for light in lights(replace(WELL, **facts)):
            found = light.finding
            assert bool(found.action) == found.is_bad, light
            assert found.page or not found.is_bad or light.group == Group.SERVER or found.words.startswith("no "), light


REASON = {"database": "migrations not applied: 1"}
AWAY = {"reasons": {"broker": "Redis does not answer"}}
SLOW = {"is_database_slow": True}
DOWN = Peer("a:1", is_up=False)
UNWATCHED = Peer("a:1", is_up=True, is_watched=False)
TROUBLED = Peer("a:1", is_up=True, troubles=[TROUBLE, TROUBLE])
CASES = [
    # light, level, a part of its words, facts
    ("database", RED, "migrations not applied", {"reasons": REASON}),
    ("broker", RED, "does not answer", AWAY),
    ("workers", GREY, "while Redis is away", AWAY),
    ("workers", RED, "nobody works on batches", {"queues": [Queue("batches", False), Queue("keys", True)]}),
    ("workers", YELLOW, "nobody works on reports", {"queues": [Queue("reports", False, is_needed=False)]}),
    ("beat", GREY, "nothing yet", {"counted_until": None}),
    ("beat", GREEN, "runs", {"counted_until": ago(180)}),
    ("beat", RED, "nothing done since", {"counted_until": ago(181)}),
    ("beat", GREY, "not known", {"counted_until": ago(181), "queues": [Queue("maintenance", False)]}),
    ("node", RED, "no node is configured", {"nodes": []}),
    ("node-a:1", RED, "was not read", {"nodes": [DOWN]}),
    ("node-a:1", YELLOW, "was not read", {"nodes": [DOWN, OTHER]}),
    ("node-b:1", GREEN, "is read", {"nodes": [DOWN, OTHER]}),
    ("node-a:1", YELLOW, "the clock is wrong (and 1 more)", {"nodes": [TROUBLED]}),
    ("node-a:1", YELLOW, "was not looked at lately", {"nodes": [UNWATCHED]}),
    ("node-a:1", GREY, "while Redis is away", {**AWAY, "nodes": [DOWN]}),
    ("store-a:1", YELLOW, "never read", {"stores": [Store("a:1", None)]}),
    ("store-a:1", GREEN, "is read", {"stores": [Store("a:1", ago(60))]}),
    ("store-a:1", YELLOW, "not read any further", {"stores": [Store("a:1", ago(61))]}),
    ("store-a:1", GREEN, "1 stretch of the past", {"stores": [Store("a:1", NOW, gaps=1)]}),
    ("store-a:1", YELLOW, "the clock is wrong", {"stores": [Store("a:1", NOW, troubles=[TROUBLE])]}),
    ("database", RED, "takes too long", SLOW),
    ("inbox", GREY, "while PostgreSQL is slow", SLOW),
    ("delivery", GREY, "while PostgreSQL is slow", SLOW),
    ("replies", GREY, "while PostgreSQL is slow", {**SLOW, "lost_replies": 9}),
    ("inbox", GREEN, "99,999 waiting, ", {"inbox": Waiting(99_999, 5)}),
    ("inbox", GREEN, "100,000 or more waiting, ", {"inbox": Waiting(100_000, 5)}),
    ("inbox", GREEN, "3 waiting, the oldest for 5.0 s", {"inbox": Waiting(3, 5.0)}),
    ("inbox", YELLOW, "the oldest for 5.1 s", {"inbox": Waiting(3, 5.1)}),
    ("inbox", YELLOW, "the oldest for 30 s", {"inbox": Waiting(3, 30)}),
    ("inbox", RED, "the oldest for 31 s", {"inbox": Waiting(3, 31)}),
    ("inbox", GREEN, "empty", {"dead_letters": 19}),
    ("inbox", YELLOW, "20 messages of the last hour could not be read", {"dead_letters": 20}),
    ("failed", GREEN, "none", {}),
    ("failed", YELLOW, "1 waits for a repair of ours, the newest of KeyError at a.py:7 in f (3 times)",
     {"failed": Failed(1, 1, "KeyError at a.py:7 in f", 3)}),
    ("failed", YELLOW, "900 wait for a repair", {"failed": Failed(900, 19, "KeyError", 1)}),
    ("failed", RED, "20 wait for a repair", {"failed": Failed(20, 20, "KeyError", 20)}),
    ("delivery", GREEN, "nothing is overdue", {"due": Waiting(9, 0)}),
    ("delivery", GREEN, "due for 10 s", {"due": Waiting(9, 10)}),
    ("delivery", YELLOW, "due for 11 s", {"due": Waiting(9, 11)}),
    ("delivery", RED, "due for 61 s", {"due": Waiting(9, 61)}),
    ("delivery", RED, "stopped by ann since 2026-11-21 12:00:00 UTC: gorush moves", {"switches": [RUNNING, DRAIN]}),
    ("delivery", RED, "stopped by ann", {"switches": [DRAIN, PAUSED], "due": Waiting(9, 9999)}),
    ("delivery", RED, "APN beta paused by bea since 2026-11-21 12:00:00 UTC: no reason given; APN old tripped",
     {"switches": [PAUSED, TRIPPED]}),
    ("delivery", GREEN, "nothing is overdue", {"switches": [TRIPPED, RUNNING]}),
    ("gorush", RED, "no gorush is configured", {"gorush": []}),
    ("gorush-a:1", RED, "does not answer", {"gorush": [DOWN]}),
    ("gorush-a:1", YELLOW, "does not answer", {"gorush": [DOWN, GORUSH]}),
    ("gorush-a:1", YELLOW, "the clock is wrong", {"gorush": [TROUBLED]}),
    ("gorush-a:1", GREEN, "answers", {**AWAY, "gorush": [UNWATCHED]}),
    ("channels", GREY, "nothing was delivered yet", {"switches": [DRAIN]}),
    ("channels", RED, "APN old tripped by a breaker since 2026-11-21 12:00:00 UTC: refused; APN beta paused by bea",
     {"switches": [PAUSED, RUNNING, TRIPPED]}),
    ("channels", YELLOW, "APN beta paused by bea since 2026-11-21 12:00:00 UTC: no reason given",
     {"switches": [RUNNING, PAUSED]}),
    ("dead-tokens", GREEN, "deaths of tokens are believed", {}),
    ("dead-tokens", RED, "too many tokens of APN app and Firebase are refused as dead to believe it",
     {"deaths_doubted": {"Firebase": NOW, "APN app": NOW}}),
    ("results", GREEN, "no push was tried in the last 3 minutes", {"tries": {}}),
    ("results", GREEN, "19 of 19 tries failed", {"tries": tried(transient=19)}),
    ("results", GREEN, "10 of 100 tries failed", {"tries": tried(transient=10, delivered=90)}),
    ("results", YELLOW, "APN app: 11 of 100 tries failed in the last 3 minutes, most of them transient (x)",
     {"tries": tried(transient=11, delivered=89)}),
    ("results", RED, "most of them config (x)", {"tries": tried(config=30, ambiguous=21, dead=49)}),
    ("results", GREEN, "0 of 100 tries failed", {"tries": tried(dead=60, payload=40)}),
    ("results", RED, "Firebase: 60 of 60 tries failed in the last 3 minutes, most of them transient (x); APN app: 20",
     {"tries": tried(transient=20, delivered=80) | tried("Firebase", transient=60)}),
    ("results", GREEN, "0 of 30 tries failed",
     {"tries": tried(delivered=30) | {("APN x", "delivered", "dry_run"): 3}}),
    # The newest minute decides whether it still is so.
    ("results", GREEN, "60 of 100", {"tries": tried(transient=60, delivered=40), "newest_tries": tried(delivered=30)}),
    ("results", RED, "60 of 100", {"tries": tried(transient=60, delivered=40), "newest_tries": tried(transient=3)}),
    ("results", RED, "60 of 100",
     {"tries": tried(transient=60, delivered=40), "newest_tries": tried(transient=8, delivered=22), "before": WAS_RED}),
    ("results", YELLOW, "60 of 100",
     {"tries": tried(transient=60, delivered=40), "newest_tries": tried(transient=7, delivered=23), "before": WAS_RED}),
    ("results", GREEN, "60 of 100",
     {"tries": tried(transient=60, delivered=40), "newest_tries": tried(transient=1, delivered=29), "before": WAS_RED}),
    ("results", YELLOW, "6 of 100 tries failed", {"tries": tried(transient=6, delivered=94), "before": WAS_YELLOW}),
    ("results", GREEN, "6 of 100 tries failed", {"tries": tried(transient=6, delivered=94)}),
    ("unknown-errors", YELLOW, "1 error of the last hour that no rule knows",
     {"unknown_errors": 1, "tries": tried(transient=60)}),
    ("unknown-errors", GREEN, "has a rule", {}),
    ("gorush-g:1", RED, "answers, but no push reaches it", {"unreached_since": NOW}),
    ("replies", GREEN, "2 waiting", {"outbox": Waiting(2, 3)}),
    ("replies", YELLOW, "2 waiting, the oldest for 4.0 s", {"outbox": Waiting(2, 4)}),
    ("replies", RED, "2 waiting, the oldest for 31 s", {"outbox": Waiting(2, 31)}),
    ("replies", YELLOW, "waited for its answer", {"overdue_seconds": 4.0}),
    ("replies", RED, "waited for its answer", {"overdue_seconds": 11.0, "outbox": Waiting(2, 4)}),
    ("replies", GREEN, "empty", {"lost_replies": 4}),
    ("replies", YELLOW, "5 of the last hour", {"lost_replies": 5}),
    ("replies", GREEN, "empty", {"lost_replies": 49, "replies": 1000}),
    ("canary", OFF, "not set up", {"canary": None, "is_canary_expected": False}),
    ("canary", YELLOW, "no round trip lately", {"canary": None}),
    ("canary", RED, "broken: gorush", {"canary": RoundTrip(NOW, is_broken=True, words="gorush …", total_ms=1)}),
    ("canary", GREY, "while Redis is away", {**AWAY, "canary": None}),
    ("canary", GREEN, "holds, 800 ms in all", {}),
    ("canary", GREEN, "800 ms in all; as far as gorush: nothing is shown about Apple and Google",
     {"canary": replace(WELL.canary, is_dry_run=True)}),
    ("canary", GREEN, "as far as gorush: nothing is shown about Apple, Google and the halted channels",
     {"canary": replace(WELL.canary, is_dry_run=True), "switches": [RUNNING, PAUSED]}),
    ("xmpp-canary", OFF, "not set up", {"xmpp": Xmpp(1, 0)}),
    ("xmpp-canary", YELLOW, "no round trip lately", {"xmpp": Xmpp(1, 0), "is_xmpp_canary_expected": True}),
    (
        "xmpp-canary",
        RED,
        "broken: the XMPP server",
        {
            "xmpp": Xmpp(1, 0),
            "xmpp_canary": RoundTrip(NOW, is_broken=True, words="the XMPP server does not route", total_ms=1),
        },
    ),
    (
        "xmpp-canary",
        GREEN,
        "holds, 90 ms in all",
        {
            "xmpp": Xmpp(1, 0),
            "xmpp_canary": RoundTrip(NOW, is_broken=False, words="every link of the chain holds", total_ms=90),
        },
    ),
    ("xmpp", RED, "cannot be reached", {"reasons": {"xmpp": "the XMPP server cannot be reached"}, "xmpp": Xmpp(1, 0)}),
    ("xmpp", YELLOW, "serves no app", {"xmpp": Xmpp(0, 0)}),
    ("xmpp", GREEN, "1,200 pushes in the last hour", {"xmpp": Xmpp(2, 1200)}),
    ("xmpp", GREY, "while Redis is away", {**AWAY, "xmpp": Xmpp(1, 0)}),
    ("reports", OFF, "switched off", {"reports": Reports(True, False, "Nightly reports are switched off.")}),
    ("reports", YELLOW, "are missing", {"reports": Reports(False, True, "The reports of x are missing")}),
    ("reports", YELLOW, "usual band: error rate 9 % (and 1 more)",
     {"reports": Reports(False, False, "here.", ["error rate 9 %", "churn rate 8 %"])}),
    ("reports", YELLOW, "here. 2 doubts about the data", {"reports": Reports(False, False, "here.", findings=2)}),
]  # fmt: skip


@pytest.mark.parametrize(("light", "level", "words", "facts"), CASES)
def test_a_light_says_what_is_the_case(light: str, level: Level, words: str, facts: dict[str, Any]) -> None:
    found = one(light, **facts)
    assert (found.level, words in found.words) == (level, True), found


@pytest.mark.parametrize(
    ("light", "page", "facts"),
    [
        ("node-a:1", Page.NODES, {"nodes": [DOWN]}),
        ("inbox", Page.INBOX, {"inbox": Waiting(3, 31)}),
        ("inbox", Page.DEAD_LETTERS, {"dead_letters": 20}),
        ("failed", Page.FAULTS, {"failed": Failed(1, 1, "KeyError", 1)}),
        ("failed", Page.FAILED, {"failed": Failed(1, 1)}),
        ("delivery", Page.STUCK, {"due": Waiting(9, 61)}),
        ("delivery", Page.DRAIN, {"switches": [DRAIN]}),
        ("delivery", Page.HALTED, {"switches": [PAUSED, TRIPPED]}),
        ("channels", Page.HALTED, {"switches": [PAUSED, TRIPPED]}),
        ("channels", Page.TRIPPED, {"switches": [TRIPPED, RUNNING]}),
        ("channels", Page.PAUSED, {"switches": [PAUSED]}),
        ("dead-tokens", Page.CHANNELS, {"deaths_doubted": {"Firebase": NOW}}),
        ("unknown-errors", Page.UNKNOWN_ERRORS, {"unknown_errors": 1}),
        ("results", Page.FAILED_ATTEMPTS, {"tries": tried(transient=60)}),
        ("xmpp", Page.XMPP_APPS, {"xmpp": Xmpp(0, 0)}),
        ("xmpp", Page.XMPP_DEVICES, {"xmpp": Xmpp(1, 0)}),
        ("replies", Page.REQUESTS, {"overdue_seconds": 11.0}),
        ("replies", Page.LOST_REPLIES, {"lost_replies": 50}),
        ("reports", Page.RUNS, {"reports": Reports(False, True, "missing")}),
    ],
)
def test_a_light_leads_to_where_it_is_put_right(light: str, page: Page, facts: dict[str, Any]) -> None:
    assert one(light, **facts).page == page


@pytest.mark.parametrize(
    ("light", "since", "facts"),
    [
        ("node-a:1", TROUBLE.since, {"nodes": [TROUBLED]}),
        ("node-a:1", None, {"nodes": [replace(TROUBLED, is_up=False)]}),
        ("store-a:1", ago(61), {"stores": [Store("a:1", ago(61))]}),
        ("inbox", ago(31), {"inbox": Waiting(3, 31)}),
        ("delivery", ago(61), {"due": Waiting(9, 61)}),
        ("delivery", ago(60), {"switches": [DRAIN._replace(since=ago(60))]}),
        ("channels", ago(9), {"switches": [TRIPPED._replace(since=ago(9))]}),
        ("replies", ago(31), {"outbox": Waiting(2, 31)}),
        ("beat", ago(181), {"counted_until": ago(181)}),
        ("inbox", None, {"inbox": Waiting(3, 1)}),
    ],
)
def test_a_light_knows_since_when_where_the_facts_do(light: str, since: datetime, facts: dict[str, Any]) -> None:
    assert one(light, **facts).since == since


def test_the_worst_are_three_red_before_yellow_and_causes_before_what_follows() -> None:
    found = lights(
        replace(
            WELL,
            canary=RoundTrip(NOW, is_broken=True, words="gorush", total_ms=1),
            gorush=[DOWN],
            queues=[Queue("reports", False, is_needed=False)],
            inbox=Waiting(1, 99),
            due=Waiting(1, 99),
        )
    )
    assert [light.id for light in worst(found)] == ["inbox", "delivery", "gorush-a:1"]
    assert verdict(found) == Finding(
        RED, "No pushes are sent: no gorush answers. 4 things need somebody now, 1 can wait"
    )


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"switches": [PAUSED, RUNNING]}, "Messages get through; one thing is to be looked at"),
        ({"switches": [PAUSED, RUNNING], "unknown_errors": 1}, "Messages get through; 2 things are to be looked at"),
        ({"switches": [TRIPPED, RUNNING]}, "One thing needs somebody now"),
        (
            {"switches": [DRAIN, RUNNING]},
            "No pushes are sent: stopped by ann since 2026-11-21 12:00:00 UTC. One thing needs somebody now",
        ),
        (
            {"switches": [PAUSED, TRIPPED._replace(since=ago(-60))]},
            (
                "No pushes are sent: stopped by bea and a breaker since 2026-11-21 12:01:00 UTC. "
                "2 things need somebody now"
            ),
        ),
        (
            {"gorush": [replace(GORUSH, is_up=False)]},
            "No pushes are sent: no gorush answers. One thing needs somebody now",
        ),
    ],
)
def test_the_verdict_counts(facts: dict[str, Any], words: str) -> None:
    assert verdict(lights(replace(WELL, **facts))).words == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.44, "0.4 s"), (9.96, "10.0 s"), (10, "10 s"), (119, "119 s"), (120, "2 min"),
     (7200, "2 h"), (172_800, "2 d")],
)  # fmt: skip
def test_durations_are_short(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("code", "words"), [("unreachable", "Our own gorush"), ("unavailable", "patience"), ("tls", "certificate")]
)
def test_what_to_do_about_failures_depends_on_their_code(code: str, words: str) -> None:
    tries = {("APN app", "transient", code): 30, ("APN app", "ambiguous", "timeout"): 3}
    assert words in one("results", tries=tries).action


def test_each_missing_worker_is_started_by_a_command_of_its_own() -> None:
    action = one("workers", queues=[Queue("batches", False), Queue("keys", False)]).action
    assert action.startswith(
        "Start `celery -A pushserver worker -Q batches` and `celery -A pushserver worker -Q keys`; "
    )
