"""Indicators: the sentence of each for its facts, and the list that dashboard, API and metrics share."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kit.db.reasons import REASONS
from pushserver.checks import OTHER_FIELD_KEYS
from pushserver.console.checks.peers import Complaint, Peer
from pushserver.console.gorush.part import GORUSH as GORUSH_PART
from pushserver.console.health import asking
from pushserver.console.health import indicators as own
from pushserver.console.health.indicators import Flow, LostKey, Past, Switch, Volume, judge, kinds_of
from pushserver.console.health.judges import CanaryFacts, Filled, RoundTrip, Waiting
from pushserver.console.health.verdicts import Facts, Kind, State, Verdict, duration, is_ready, overall, worst
from pushserver.console.parts import parts
from pushserver.console.waku import indicators as waku
from pushserver.console.waku.indicators import Failed, Store
from pushserver.console.waku.part import WAKU
from pushserver.console.xmpp import indicators as xmpp
from pushserver.console.xmpp.part import XMPP
from spark_reports.nights.status import State as Night
from spark_reports.nights.status import Status

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RED, YELLOW, GREEN, GREY, OFF = State.RED, State.YELLOW, State.GREEN, State.GREY, State.OFF
COMPLAINT = Complaint("clock", "the clock is wrong", "why", "Run NTP.")
WRONG = (COMPLAINT, NOW - timedelta(hours=1))
NODE, OTHER = Peer("a:1", is_up=True), Peer("b:1", is_up=True)
GORUSH = Peer("g:1", is_up=True)
RUNNING = Switch("running", "APN app", "", "", NOW, "iPhone")
ANDROID = Switch("running", "Firebase", "", "", NOW, "Android")
TRIPPED = Switch("tripped", "APN old", "", "refused", NOW, "iPhone")
PAUSED = Switch("paused", "APN beta", "bea", "", NOW, "iPhone")
LONG_PAUSED = PAUSED._replace(since=NOW - timedelta(minutes=4))
DRAIN = Switch("drained", "", "ann", "gorush moves", NOW, "")
WAS_RED, WAS_YELLOW = {"results": RED}, {"results": YELLOW}


def tried(channel: str = "APN app", **counts: int) -> dict[tuple[str, str, str], int]:
    """Return the attempts of one app by outcome, with a code for those that did not deliver."""
    return {(channel, outcome, "" if outcome == "delivered" else "x"): number for outcome, number in counts.items()}


def flow(*minutes: int, usual: int = 2400) -> Flow:
    """Return a flow of the last minutes, where ``usual`` is its sum in this hour of other days."""
    return Flow(
        "request has arrived through Waku", "requests have arrived through Waku", [usual] * 9, [40] * 50 + [*minutes]
    )


CAME_THROUGH = RoundTrip(cause="", words="every link of the chain holds", total_ms=800)
REDIS = {word: f"{sentence}: {step}" for _, word, sentence, step in asking.REFUSALS}
NO_CHANNELS, UNSAVED = REDIS["channel"], REDIS["MISCONF"]
OUT_OF_MEMORY = "Redis has reached its maxmemory, and refuses writes: raise it"
# Facts that need no table of the database, and those that do.
ASKED = {
    "parts": [WAKU, GORUSH_PART],
    "database": "",
    "broker": "",
    "silent_seconds": [0.1, 0.4],
    "waits_for": "",
    "queues": {"keys": True, "maintenance": True, "reports": True},
    "volumes": [],
    "past": {},
    "nodes": [NODE],
    "bridge_seconds": 0.4,
    "canary": CanaryFacts(is_expected=True, last=CAME_THROUGH),
    "gorushes": [GORUSH],
    "cut_off": "",
}
STORED = {
    "is_slow": False,
    "counted_until": NOW - timedelta(seconds=40),
    "key": None,
    "registrations": Filled(10, 100),
    "switches": [RUNNING, RUNNING],
    "failing": [],
    "dead-tokens": {},
    "time_to_live": 86_400,
    "tries": tried(delivered=100),
    "newest_tries": {},
    "before": {},
    "flows": [],
    "days": 5,
    "reports": Status(Night.PRESENT, "The reports of 2026-11-20 are here."),
    "anomalies": [],
    "stores": [Store(Peer("a:1"), NOW - timedelta(seconds=7))],
    "dead-letters": 0,
    "failed": Failed(),
    "lost-replies": 0,
    "replies_sent": 100,
    "unreached_since": None,
    "unknown-errors": 0,
    **dict.fromkeys(("inbox", "delivery", "replies", "answers"), Waiting()),
}
OF_XMPP = {"xmpp": "", "xmpp-canary": CanaryFacts(), "xmpp-apps": 0, "xmpp_pushes": 0, "xmpp-devices": Filled(0, 2)}
ALL_KINDS = kinds_of(parts())
WELL = Facts(ASKED | STORED, now=NOW)


def facts(**changes: Any) -> Facts:
    """Return facts of a healthy server with these changes; one that is None is missing. With ``xmpp`` there is XMPP."""
    known = Facts(WELL)
    if "xmpp" in changes:
        known |= {**OF_XMPP, "parts": [WAKU, XMPP, GORUSH_PART]}
    for name, value in changes.items():
        fact = name if name in known | {"refusal": ""} else name.replace("_", "-")
        assert fact in known, name
        known[fact] = value
        if value is None and WELL[fact] is not None and fact != "counted_until":
            del known[fact]
    return known


def without_database(known: Facts) -> Facts:
    asked = {*ASKED, "xmpp", "xmpp-canary", "now"}
    return Facts({name: fact for name, fact in known.items() if name in asked}, is_slow=True)


def indicators(**changes: Any) -> list[Verdict]:
    return judge(facts(**changes))


def one(indicator_id: str, **changes: Any) -> Verdict:
    (found,) = [indicator for indicator in indicators(**changes) if indicator.id == indicator_id]
    return found


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def test_when_all_is_well_every_indicator_is_green():
    assert {found.state for found in judge(WELL)} == {GREEN}
    assert overall(judge(WELL)) == (GREEN, "Messages get through, and nothing needs you")
    assert worst(judge(WELL)) == []
    for known in (WELL, without_database(WELL)):  # without a component there is none of XMPP
        assert not [found.id for found in judge(known) if "xmpp" in found.id]


def test_every_indicator_has_an_id_of_its_own():
    found = indicators(nodes=[NODE, OTHER], stores=[Store(Peer("a:1"), NOW), Store(Peer("b:1"), NOW)], xmpp="")
    assert len({indicator.id for indicator in found}) == len(found)
    assert len({kind.id for kind in ALL_KINDS}) == len(ALL_KINDS)


def test_a_bad_indicator_names_a_first_step_and_a_page_and_each_kind_has_a_case():
    bad = set()
    for _, _, _, changes in CASES:
        for found in indicators(**changes):
            assert bool(found.first_step) == found.is_bad, found
            is_elsewhere = found.kind in own.KINDS[:8] or found.sentence.startswith("no ")
            assert found.page or not found.is_bad or is_elsewhere, found
            bad |= {found.kind} if found.is_bad else set()
        assert overall(indicators(**changes))[1].startswith(ABOUT), changes
    assert bad == set(ALL_KINDS)


def test_readiness_is_decided_without_facts_of_the_database():
    for _, _, _, changes in CASES:
        known = facts(**changes)
        deciding = [replace(found, cause="") for found in judge(known) if found.kind.decides_readiness]
        assert sorted(map(repr, deciding)) == sorted(map(repr, own.readiness(known)))
        without = judge(without_database(known))
        assert [replace(found, cause="") for found in without if found.kind.decides_readiness] == deciding


def test_while_the_database_does_not_answer_indicators_of_its_facts_are_unknown():
    for changes in ({}, {"xmpp": ""}):
        without = without_database(facts(**changes))
        assert {found.kind for found in judge(without)} == {found.kind for found in indicators(**changes)}
        reported = {found.kind for found in judge(without) if found.state != GREY}
        assert {kind.id for kind in reported} <= {*REACHED, "database-speed", "disk"}
    assert is_ready(judge(without_database(WELL)))


# Facts without the database.
REACHED = {"database", "broker", "batches", "workers", "bridge", "node", "gorush", "xmpp", "canary", "xmpp-canary"}


@pytest.mark.parametrize(
    ("is_unready", "changes"),
    [
        (True, {"silent_seconds": [4.1, 9.0]}),
        (False, {"silent_seconds": [0.5, 9.0]}),
        (False, {"queues": {"reports": False}}),
        (True, {"bridge_seconds": 4.0}),
        (True, {"xmpp": "no component is running"}),
        (False, {"xmpp": ""}),
        (False, {"switches": [DRAIN], "delivery": Waiting(9, 99)}),
    ],
)
def test_readiness_is_decided_by_the_servers_that_every_message_needs(is_unready, changes):
    """`test_health` has each server that does not answer."""
    assert is_ready(indicators(**changes)) == (not is_unready)


UNAVAILABLE = {"broker": "Redis does not answer: start it"}
SLOW = {"is_slow": True, "inbox": None, "delivery": None, "replies": None, "answers": None}
NOT_EXPECTED = CanaryFacts()
DOWN, DOWN_TOO = Peer("a:1", is_up=False), Peer("b:1", is_up=False)
UNWATCHED = Peer("a:1", is_up=True, is_watched=False)
TROUBLED = Peer("a:1", is_up=True, complaints=[WRONG, WRONG])
CASES = [
    # indicator, state, a part of its sentence, facts
    ("database", RED, "migrations not applied", {"database": "migrations not applied: 1"}),
    ("key", RED, "is not the one that clients know", {"key": LostKey()}),
    ("key", GREEN, "was changed, as ann has acknowledged", {"key": LostKey("ann")}),
    ("disk", GREEN, "no volume is seen", {}),
    ("disk", GREEN, "4.0 GiB for PostgreSQL left; the database has 90 MiB, and grows by 24 MiB a day",
     {"volumes": [Volume("PostgreSQL", 4096, 9000)], "past": {"size database": Past(ago(3600 * 10), 80, NOW, 90)}}),
    ("disk", YELLOW, "the disk of Redis has 899 MiB left of 8.8 GiB", {"volumes": [Volume("Redis", 899, 9000)]}),
    ("disk", GREEN, "900 MiB for", {"volumes": [Volume("PostgreSQL", 900, 9000)]}),
    ("disk", GREEN, "1.0 GiB for", {"volumes": [Volume("PostgreSQL", 1024, 2**20)]}),
    ("disk", RED, "the disk of PostgreSQL has 127 MiB left of 300 MiB",
     {"volumes": [Volume("PostgreSQL", 127, 300), Volume("reports", 1, 300, is_needed=False)]}),
    ("disk", RED, "the disk of PostgreSQL is full",
     {"volumes": [Volume("Redis", 99, 300), Volume("PostgreSQL", 15, 300)]}),
    ("disk", GREEN, "60 MiB for metrics", {"volumes": [Volume("metrics", 60, 64)]}),
    ("disk", RED, "the disk of metrics is full", {"volumes": [Volume("metrics", 15, 64)]}),
    ("disk", YELLOW, "the disk of reports is full", {"volumes": [Volume("reports", 1, 300, is_needed=False)]}),
    ("disk", RED, "has 2.9 GiB left of 8.8 GiB, and is full in 5 h at the pace of the last day",
     {"volumes": [Volume("Redis", 2999, 9000)], "past": {"free Redis": Past(ago(3600 * 10), 8500, NOW, 3000)}}),
    ("disk", YELLOW, "is full in 6 d", {"volumes": [Volume("Redis", 2999, 9000)],
     "past": {"free Redis": Past(ago(86_400), 3450, NOW, 3000)}}),
    ("disk", GREEN, "2.9 GiB for Redis", {"volumes": [Volume("Redis", 2999, 9000)],
     "past": {"free Redis": Past(NOW, 3400, NOW, 3400)}}),
    ("database", RED, "the disk of PostgreSQL is full", {"database": REASONS["53100"]}),
    ("batches", RED, "the workers wait: FIELD_ENCRYPTION_KEYS do not open",
     {"silent_seconds": [], "waits_for": OTHER_FIELD_KEYS}),
    ("batches", GREEN, "2 processes at work", {"waits_for": OTHER_FIELD_KEYS}),
    ("broker", RED, "does not answer", UNAVAILABLE),
    *(("broker", RED, sentence, {"broker": f"{sentence}: {step}"}) for _, _, sentence, step in asking.REFUSALS),
    ("workers", GREY, "while Redis is away", UNAVAILABLE),
    ("batches", GREEN, "1 process at work", {"silent_seconds": [2.9], **UNAVAILABLE}),
    ("batches", GREY, "not known", {"silent_seconds": None, "database": "PostgreSQL does not answer"}),
    ("batches", RED, "no worker processes batches", {"silent_seconds": []}),
    ("batches", YELLOW, "1 of 2 processes has done nothing for 9.0 s", {"silent_seconds": [9.0, 0.1]}),
    ("batches", RED, "2 of 2 processes have done nothing for 20 s", {"silent_seconds": [9.0, 20.0]}),
    ("workers", RED, "no worker for keys", {"queues": {"maintenance": True, "keys": False}}),
    ("workers", YELLOW, "no worker for reports", {"queues": {"reports": False}}),
    ("beat", GREY, "nothing yet", {"counted_until": None}),
    ("beat", GREEN, "runs", {"counted_until": ago(180)}),
    ("beat", RED, "has scheduled nothing since 11:56", {"counted_until": ago(181)}),
    ("beat", GREY, "not known", {"counted_until": ago(181), "queues": {"maintenance": False}}),
    ("bridge", GREEN, "is at work", {"bridge_seconds": 2.9}),
    ("bridge", RED, "has stopped", {"bridge_seconds": 3.1, "nodes": [DOWN]}),
    ("bridge", GREY, "not known while PostgreSQL", {"bridge_seconds": None}),
    ("bridge", OFF, "has no node", {"nodes": []}),
    ("node-a:1", GREY, "while the bridge is not at work", {"bridge_seconds": 1.6, "nodes": [DOWN, DOWN_TOO]}),
    ("node-a:1", YELLOW, "was not read", {"bridge_seconds": 1.6, "nodes": [DOWN, OTHER]}),
    ("node-a:1", RED, "was not read", {"bridge_seconds": 1.4, "nodes": [DOWN]}),
    ("node", RED, "no node is configured", {"nodes": []}),
    ("node-b:1", GREEN, "is read", {"nodes": [DOWN, OTHER]}),
    ("node-a:1", YELLOW, "the clock is wrong (and 1 more)", {"nodes": [TROUBLED]}),
    ("node-a:1", YELLOW, "was not checked lately", {"nodes": [UNWATCHED]}),
    ("node-a:1", GREY, "while Redis is away", {**UNAVAILABLE, "nodes": [DOWN]}),
    ("store-a:1", YELLOW, "never read", {"stores": [Store(Peer("a:1"), None)]}),
    ("store-a:1", GREEN, "is read", {"stores": [Store(Peer("a:1"), ago(60))]}),
    ("store-a:1", YELLOW, "not read up to now", {"stores": [Store(Peer("a:1"), ago(121))]}),
    ("store-a:1", YELLOW, "was not checked lately", {"stores": [Store(Peer("a:1", is_watched=False), NOW)]}),
    ("store-a:1", YELLOW, "the clock is wrong", {"stores": [Store(Peer("a:1", complaints=[WRONG]), NOW)]}),
    ("database-speed", RED, "takes too long", SLOW),
    ("database-speed", GREY, "not known", {"database": "PostgreSQL does not answer"}),
    *((name, GREY, "while PostgreSQL does not answer in time", SLOW)
      for name in ("inbox", "delivery", "replies", "answers")),
    ("inbox", GREEN, "99,999 waiting, ", {"inbox": Waiting(99_999, 5)}),
    ("inbox", GREEN, "100,000 or more waiting, ", {"inbox": Waiting(100_000, 5)}),
    ("inbox", GREEN, "3 waiting, the oldest for 5.0 s", {"inbox": Waiting(3, 5.0)}),
    ("inbox", YELLOW, "the oldest for 5.1 s", {"inbox": Waiting(3, 5.1)}),
    ("inbox", YELLOW, "the oldest for 30 s", {"inbox": Waiting(3, 30)}),
    ("inbox", RED, "the oldest for 31 s", {"inbox": Waiting(3, 31)}),
    ("dead-letters", GREEN, "19 in the last hour", {"dead_letters": 19}),
    ("dead-letters", YELLOW, "20 messages of the last hour could not be read", {"dead_letters": 20}),
    ("failed", GREEN, "none", {}),
    ("failed", YELLOW, "1 failed because of a bug in this server, the newest of KeyError at a.py:7 in f (3 times)",
     {"failed": Failed(1, 1, "KeyError at a.py:7 in f", 3)}),
    ("failed", YELLOW, "900 failed because of a bug", {"failed": Failed(900, 19, "KeyError", 1)}),
    ("failed", RED, "20 failed because of a bug", {"failed": Failed(20, 20, "KeyError", 20)}),
    ("failed", RED, "5 failed because of a bug", {"failed": Failed(5, 5, "KeyError", 5, now=5, requests=5)}),
    ("failed", YELLOW, "5 failed because of a bug", {"failed": Failed(5, 5, "KeyError", 5, now=5, requests=6)}),
    ("failed", YELLOW, "4 failed because of a bug", {"failed": Failed(4, 4, "KeyError", 4, now=4)}),
    ("delivery", GREEN, "nothing is overdue", {"delivery": Waiting(9, 0)}),
    ("delivery", GREEN, "due for 10 s", {"delivery": Waiting(9, 10)}),
    ("delivery", YELLOW, "due for 11 s", {"delivery": Waiting(9, 11)}),
    ("delivery", RED, "due for 61 s", {"delivery": Waiting(9, 61)}),
    ("sending", RED, "stopped by ann since 2026-11-21 12:00:00 UTC: gorush moves", {"switches": [RUNNING, DRAIN]}),
    ("sending", RED, "stopped by ann", {"switches": [DRAIN, PAUSED], "delivery": Waiting(9, 9999)}),
    ("sending", RED, "APN beta paused by bea since 2026-11-21 12:00:00 UTC: no reason given; APN old tripped",
     {"switches": [PAUSED, TRIPPED]}),
    ("sending", GREEN, "pushes are sent", {"switches": [TRIPPED, RUNNING]}),
    ("sending", RED, "no pushes are sent: no gorush answers", {"gorushes": [DOWN]}),
    ("sending", RED, "no pushes are sent: no gorush is configured", {"gorushes": []}),
    ("sending", RED, "no pushes are sent: none reaches gorush", {"unreached_since": NOW}),
    ("sending", GREEN, "pushes are sent", {"gorushes": [DOWN, GORUSH]}),
    ("gorush", RED, "no gorush is configured", {"gorushes": []}),
    ("gorush-a:1", RED, "does not answer", {"gorushes": [DOWN]}),
    ("gorush-a:1", YELLOW, "does not answer", {"gorushes": [DOWN, GORUSH]}),
    ("gorush-a:1", YELLOW, "the clock is wrong", {"gorushes": [TROUBLED]}),
    ("gorush-a:1", GREEN, "answers", {**UNAVAILABLE, "gorushes": [UNWATCHED]}),
    ("channels", GREY, "nothing was delivered yet", {"switches": [DRAIN]}),
    ("channels", RED, "APN old tripped by a breaker since 2026-11-21 12:00:00 UTC: refused; APN beta paused by bea",
     {"switches": [PAUSED, RUNNING, TRIPPED]}),
    ("channels", YELLOW, "APN beta paused by bea since 2026-11-21 12:00:00 UTC: no reason given",
     {"switches": [RUNNING, PAUSED]}),
    ("dead-tokens", GREEN, "dead tokens are disabled", {}),
    ("dead-tokens", RED, "too many tokens of APN app and Firebase are refused as dead",
     {"dead_tokens": {"Firebase": NOW, "APN app": NOW}}),
    ("results", GREEN, "no push was attempted in the last 3 minutes", {"tries": {}}),
    ("results", GREEN, "19 of 19 attempts failed", {"tries": tried(transient=19)}),
    ("results", GREEN, "10 of 100 attempts failed", {"tries": tried(transient=10, delivered=90)}),
    ("results", YELLOW, "APN app: 11 of 100 attempts failed in the last 3 minutes, most of them transient (x)",
     {"tries": tried(transient=11, delivered=89)}),
    ("results", RED, "most of them config (x)", {"tries": tried(config=30, ambiguous=21, dead=49)}),
    ("results", GREEN, "0 of 100 attempts failed", {"tries": tried(dead=60, payload=40)}),
    ("results", RED, "Firebase: 60 of 60 attempts failed in the last 3 minutes, most of them transient (x); APN",
     {"tries": tried(transient=20, delivered=80) | tried("Firebase", transient=60)}),
    ("results", GREEN, "0 of 30 attempts failed",
     {"tries": tried(delivered=30) | {("APN x", "delivered", "dry_run"): 3}}),
    # The newest minute decides whether the fault still exists.
    ("results", GREEN, "60 of 100", {"tries": tried(transient=60, delivered=40), "newest_tries": tried(delivered=30)}),
    ("results", RED, "60 of 100", {"tries": tried(transient=60, delivered=40), "newest_tries": tried(transient=3)}),
    ("results", RED, "60 of 100",
     {"tries": tried(transient=60, delivered=40), "newest_tries": tried(transient=8, delivered=22), "before": WAS_RED}),
    ("results", YELLOW, "60 of 100",
     {"tries": tried(transient=60, delivered=40), "newest_tries": tried(transient=7, delivered=23), "before": WAS_RED}),
    ("results", GREEN, "60 of 100",
     {"tries": tried(transient=60, delivered=40), "newest_tries": tried(transient=1, delivered=29), "before": WAS_RED}),
    ("results", YELLOW, "6 of 100 attempts failed", {"tries": tried(transient=6, delivered=94), "before": WAS_YELLOW}),
    ("results", GREEN, "6 of 100 attempts failed", {"tries": tried(transient=6, delivered=94)}),
    ("unknown-errors", YELLOW, "1 error of the last hour that no rule knows",
     {"unknown_errors": 1, "tries": tried(transient=60)}),
    ("unknown-errors", GREEN, "has a rule", {}),
    ("gateway", RED, "gorush answers, but no push reaches it", {"unreached_since": NOW}),
    ("gateway", YELLOW, "process 7 on a cannot reach gorush, and leaves its pushes", {"cut_off": "process 7 on a"}),
    ("gateway", RED, "but no push reaches it", {"cut_off": "process 7 on a", "unreached_since": NOW}),
    ("gateway", GREY, "while no gorush answers", {"unreached_since": NOW, "gorushes": [DOWN]}),
    ("replies", GREEN, "2 waiting", {"replies": Waiting(2, 3)}),
    ("replies", YELLOW, "2 waiting, the oldest for 4.0 s", {"replies": Waiting(2, 4)}),
    ("replies", RED, "2 waiting, the oldest for 31 s", {"replies": Waiting(2, 31)}),
    ("answers", YELLOW, "waited for its answer", {"answers": Waiting(1, 4.0)}),
    ("answers", RED, "waited for its answer", {"answers": Waiting(1, 11.0)}),
    ("lost-replies", GREEN, "4 of the last hour", {"lost_replies": 4}),
    ("lost-replies", YELLOW, "5 of the last hour", {"lost_replies": 5}),
    ("lost-replies", GREEN, "49 of the last hour", {"lost_replies": 49, "replies_sent": 1000}),
    ("canary", OFF, "not set up", {"canary": NOT_EXPECTED}),
    ("canary", YELLOW, "no round trip lately", {"canary": CanaryFacts(is_expected=True)}),
    ("canary", RED, "broken: gorush", {"canary": CanaryFacts(last=RoundTrip("gateway", "gorush …", 1))}),
    ("canary", GREY, "while Redis is away", {**UNAVAILABLE, "canary": NOT_EXPECTED}),
    ("canary", GREEN, "holds, 800 ms in all", {}),
    ("canary", GREEN,
     "800 ms in all; a dry run up to the gateway: Apple, Google and halted apps are not tested",
     {"canary": CanaryFacts(last=replace(CAME_THROUGH, is_dry_run=True))}),
    ("xmpp-canary", OFF, "not set up", {"xmpp": ""}),
    ("xmpp-canary", YELLOW, "no round trip lately", {"xmpp": "", "xmpp_canary": CanaryFacts(is_expected=True)}),
    ("xmpp-canary", RED, "broken: the XMPP server",
     {"xmpp": "", "xmpp_canary": CanaryFacts(last=RoundTrip("gateway", "the XMPP server does not route", 1))}),
    ("xmpp-canary", GREEN, "holds, 90 ms in all",
     {"xmpp": "", "xmpp_canary": CanaryFacts(last=replace(CAME_THROUGH, total_ms=90))}),
    ("xmpp", RED, "cannot be reached", {"xmpp": "the XMPP server cannot be reached"}),
    ("xmpp", GREEN, "connected", {"xmpp": ""}),
    ("xmpp", GREY, "while Redis is away", {**UNAVAILABLE, "xmpp": ""}),
    ("xmpp-apps", YELLOW, "the server has no app", {"xmpp": "", "xmpp_apps": 0}),
    ("xmpp-apps", GREEN, "serves 2; 1,200 pushes in the last hour", {"xmpp": "", "xmpp_apps": 2, "xmpp_pushes": 1200}),
    ("registrations", GREEN, "79 of 100 are stored", {"registrations": Filled(79, 100)}),
    ("registrations", YELLOW, "80 of 100 are stored", {"registrations": Filled(80, 100)}),
    ("xmpp-devices", YELLOW, "2 of 2 are stored", {"xmpp": "", "xmpp_devices": Filled(2, 2)}),
    ("traffic", GREY, "not known yet: 4 of 5 days to compare with", {"days": 4}),
    ("traffic", GREEN, "as much as is usual", {"flows": [flow(40), flow(0, 0), flow(*[1] * 50, usual=39)]}),
    ("traffic", RED, "No request has arrived through Waku for 3 min; usual is 40 a minute", {"flows": [flow(0, 0, 0)]}),
    ("traffic", RED, "for 12 min; usual is 40 a minute", {"flows": [flow(40), flow(*[0] * 12)]}),
    ("traffic", RED, "Only 6 requests have arrived through Waku in 3 min; usual is 40 a", {"flows": [flow(2, 2, 2)]}),
    ("traffic", RED, "Only 1 request has arrived", {"flows": [flow(1, 0, 0)]}),
    ("traffic", YELLOW, "Only 29 requests have arrived through Waku in 3 min", {"flows": [flow(10, 10, 9)]}),
    ("traffic", GREEN, "as much", {"flows": [flow(11, 10, 10)]}),
    ("traffic", GREEN, "as much", {"flows": [flow(0, 0, 20)]}),
    ("traffic", RED, "for 40 min; usual is 60 an hour", {"flows": [flow(*[0] * 40, usual=60)]}),
    ("traffic", GREEN, "as much", {"flows": [flow(*[0] * 39, usual=60)]}),
    ("traffic", GREY, "nothing is counted", {"flows": [flow(0, 0, 0)], "counted_until": ago(181)}),
    ("reports", OFF, "switched off", {"reports": Status(Night.OFF, "Nightly reports are switched off.")}),
    ("reports", YELLOW, "are missing", {"reports": Status(Night.MISSING, "The reports of x are missing")}),
    ("anomalies", OFF, "none", {"reports": Status(Night.OFF, "")}),
    ("anomalies", YELLOW, "unusual: error rate 9 % (and 1 more)", {"anomalies": ["error rate 9 %", "churn 8 %"]}),
    ("anomalies", YELLOW, "2 findings about the data", {"reports": Status(Night.PRESENT, "", findings=2)}),
]  # fmt: skip


@pytest.mark.parametrize(("indicator", "state", "words", "known"), CASES)
def test_the_sentence_of_an_indicator_fits_its_facts(indicator, state, words, known):
    found = one(indicator, **known)
    assert (found.state, words in found.sentence) == (state, True), found


@pytest.mark.parametrize(
    ("indicator", "page", "known"),
    [
        ("node-a:1", waku.NODES_PAGE, {"nodes": [DOWN]}),
        ("inbox", waku.INBOX_PAGE, {"inbox": Waiting(3, 31)}),
        ("failed", waku.FAULTS_PAGE, {"failed": Failed(1, 1, "KeyError", 1)}),
        ("failed", waku.FAILED_PAGE, {"failed": Failed(1, 1)}),
        ("delivery", own.STUCK_PAGE, {"delivery": Waiting(9, 61)}),
        ("sending", own.DRAIN_PAGE, {"switches": [DRAIN]}),
        ("sending", own.HALTED_PAGE, {"switches": [PAUSED, TRIPPED]}),
        ("channels", own.HALTED_PAGE, {"switches": [PAUSED, TRIPPED]}),
        ("channels", own.TRIPPED_PAGE, {"switches": [TRIPPED, RUNNING]}),
        ("channels", own.PAUSED_PAGE, {"switches": [PAUSED]}),
        ("dead-tokens", own.CHANNELS_PAGE, {"dead_tokens": {"Firebase": NOW}}),
        ("results", own.FAILED_ATTEMPTS_PAGE, {"tries": tried(transient=60)}),
        ("xmpp", xmpp.DEVICES_PAGE, {"xmpp": ""}),
        ("answers", own.REQUESTS_PAGE, {"answers": Waiting(1, 11.0)}),
        ("reports", own.RUNS_PAGE, {"reports": Status(Night.MISSING, "")}),
        ("traffic", own.NEWEST_REQUESTS_PAGE, {"flows": [flow(0, 0, 0)]}),
    ],
)
def test_an_indicator_leads_to_the_page_for_its_repair(indicator, page, known):
    assert one(indicator, **known).page == page


@pytest.mark.parametrize(
    ("indicator", "since", "known"),
    [
        ("node-a:1", WRONG[1], {"nodes": [TROUBLED]}),
        ("node-a:1", None, {"nodes": [replace(TROUBLED, is_up=False)]}),
        ("store-a:1", ago(121), {"stores": [Store(Peer("a:1"), ago(121))]}),
        ("inbox", ago(31), {"inbox": Waiting(3, 31)}),
        ("inbox", None, {"inbox": Waiting(3, 1)}),
        ("delivery", ago(61), {"delivery": Waiting(9, 61)}),
        ("sending", ago(60), {"switches": [DRAIN._replace(since=ago(60))]}),
        ("channels", ago(9), {"switches": [TRIPPED._replace(since=ago(9))]}),
        ("replies", ago(31), {"replies": Waiting(2, 31)}),
        ("beat", ago(181), {"counted_until": ago(181)}),
        ("traffic", ago(40 + 5 * 60), {"flows": [flow(*[0] * 5)]}),
    ],
)
def test_an_indicator_begins_where_the_facts_begin(indicator, since, known):
    assert one(indicator, **known).since == since


def test_the_worst_are_three_red_before_yellow_and_causes_before_what_follows():
    found = indicators(
        canary=CanaryFacts(last=RoundTrip("gateway", words="gorush", total_ms=1)),
        gorushes=[DOWN],
        queues={"reports": False},
        inbox=Waiting(1, 99),
        delivery=Waiting(1, 99),
    )
    assert [indicator.id for indicator in worst(found)] == ["inbox", "gorush-a:1", "workers"]
    assert overall(found) == (RED, "No pushes are sent: no gorush answers. 2 urgent, 1 can wait")


BROKEN = CanaryFacts(last=RoundTrip("gateway", words="the worker", total_ms=1))


@pytest.mark.parametrize(
    ("causes", "known"),
    [
        ({"inbox": "batches", "delivery": "batches", "replies": "batches", "answers": "batches", "canary": "batches"},
         {"silent_seconds": [20.0, 9.0], "inbox": Waiting(1, 99), "delivery": Waiting(1, 99), "replies": Waiting(1, 99),
          "answers": Waiting(1, 99.0), "canary": BROKEN}),
        ({"delivery": "database-speed", "canary": "database-speed"},
         {"is_slow": True, "delivery": Waiting(1, 99), "canary": BROKEN}),
        ({"replies": "node-a:1", "lost-replies": "node-a:1", "canary": "node-a:1"},
         {"nodes": [DOWN], "replies": Waiting(1, 99), "lost_replies": 50, "canary": BROKEN}),
        ({"canary": "bridge", "traffic": "bridge", "store-a:1": "bridge"},
         {"bridge_seconds": 60.0, "nodes": [DOWN], "stores": [Store(DOWN, ago(121))], "canary": BROKEN,
          "flows": [flow(0, 0, 0)]}),
        ({"batches": "broker"}, {"broker": NO_CHANNELS, "silent_seconds": []}),
        ({"database": "disk", "broker": "disk", "batches": "disk"},
         {"volumes": [Volume("PostgreSQL", 0, 300)], "database": REASONS["53100"], "broker": UNSAVED,
          "silent_seconds": []}),
        # A red disk silences nothing else about PostgreSQL and Redis, and nothing about servers elsewhere.
        ({}, {"volumes": [Volume("PostgreSQL", 99, 300)], "broker": OUT_OF_MEMORY}),
        ({}, {"volumes": [Volume("metrics", 99, 300)], "database": REASONS["53100"]}),
        ({"broker": "database"}, {"volumes": [Volume("PostgreSQL and Redis", 99, 300)], **UNAVAILABLE,
         "database": "PostgreSQL does not answer"}),
        ({"canary": "inbox"}, {"inbox": Waiting(1, 99), "canary": BROKEN}),
        ({"sending": "gorush-a:1", "canary": "gorush-a:1", "answers": "gorush-a:1"},
         {"gorushes": [DOWN], "canary": BROKEN, "answers": Waiting(1, 9.0)}),
        ({"canary": "sending"}, {"switches": [DRAIN], "canary": BROKEN}),
        ({"channels": "sending", "results": "sending"},
         {"switches": [TRIPPED], "tries": tried("APN old", transient=60)}),
        ({"channels": "sending"}, {"switches": [PAUSED]}),
        ({"results": "channels"}, {"switches": [TRIPPED, RUNNING], "tries": tried("APN old", transient=60)}),
        ({}, {"switches": [TRIPPED, RUNNING], "tries": tried(transient=60)}),  # another app fails
        ({}, {"switches": [DRAIN, TRIPPED, RUNNING]}),
        ({"canary": "failed"}, {"failed": Failed(20, 20, "KeyError", 20, 20, 100), "canary": BROKEN}),
        ({}, {"failed": Failed(900, 20, "KeyError", 20, 5, 100), "canary": BROKEN}),  # it is none of so few
        ({"traffic": "node-a:1"}, {"nodes": [DOWN], "flows": [flow(0, 0, 0)]}),
        ({"beat": "workers"}, {"queues": {"keys": False}, "counted_until": ago(181)}),
        # One of several nodes, a tripped app, and the other bridge are no causes.
        ({}, {"nodes": [DOWN, OTHER], "canary": BROKEN}),
        ({}, {"switches": [TRIPPED, RUNNING], "canary": BROKEN}),
        ({}, {"xmpp": "the XMPP server cannot be reached", "canary": BROKEN}),
        ({"xmpp-canary": "xmpp"}, {"xmpp": "the XMPP server cannot be reached", "xmpp_canary": BROKEN}),
        ({}, {"nodes": [DOWN], "xmpp": "", "xmpp_canary": BROKEN}),
    ],
)  # fmt: skip
def test_an_effect_names_the_indicator_that_causes_it(causes, known):
    assert {found.id: found.cause for found in indicators(**known) if found.cause} == causes


def test_no_kind_follows_from_itself():
    def followed(kind: Kind, path: tuple[Kind, ...] = ()) -> None:
        assert kind not in path, [kind.id for kind in path]
        for other in ALL_KINDS:
            if other.explains(kind):
                followed(other, (*path, kind))

    for kind in ALL_KINDS:
        followed(kind)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"unknown_errors": 1}, "Messages get through; 1 can wait"),
        ({**UNAVAILABLE, "unknown_errors": 1}, "Messages get through; 1 urgent, 1 can wait"),
        ({"broker": NO_CHANNELS, "silent_seconds": []},
         "Nothing is processed: no worker for batches. 1 urgent"),
        ({"volumes": [Volume("PostgreSQL", 60, 300)]}, "Messages get through; 1 urgent"),
        ({"volumes": [Volume("PostgreSQL", 0, 300)], "database": REASONS["53100"]},
         "Nothing is processed: the disk of PostgreSQL is full. 1 urgent"),
        ({"silent_seconds": [], "waits_for": OTHER_FIELD_KEYS},
         "Nothing is processed: FIELD_ENCRYPTION_KEYS do not open the stored addresses. 1 urgent"),
        ({"counted_until": ago(181)}, "Messages get through; 1 urgent"),
        ({"tries": tried(transient=60)}, "Most pushes of APN app fail. 1 urgent"),
        ({"queues": {"maintenance": False}}, "Messages get through; 1 urgent"),
        ({"queues": {"keys": False}}, "Queries about new users wait: no worker for keys. 1 urgent"),
        ({"failed": Failed(900, 19, "KeyError", 1)}, "Messages get through; 1 can wait"),
        ({"failed": Failed(20, 20, "KeyError", 20)}, "Messages fail because of a bug in this server. 1 urgent"),
        ({"silent_seconds": [9.0, 20.0]}, "Nothing is processed: the workers have hung for 9.0 s. 1 urgent"),
        ({"bridge_seconds": 60.0, "nodes": [DOWN]},
         "Nothing comes in through Waku: the bridge has stopped. 1 urgent"),
        ({"delivery": Waiting(1, 20), "answers": Waiting(1, 4.0)}, "Pushes are 20 s late. 2 can wait"),
        ({"inbox": Waiting(1, 99), "switches": [LONG_PAUSED, ANDROID]},
         "Messages from Waku are 99 s late. 1 urgent, 1 can wait"),
        ({"flows": [flow(*[0] * 12)]},
         "No request has arrived through Waku for 12 min; usual is 40 a minute. 1 urgent"),
        ({"switches": [LONG_PAUSED, RUNNING]}, "Pushes of APN beta stopped 4 min ago: paused by bea. 1 can wait"),
        ({"switches": [LONG_PAUSED, ANDROID]}, "iPhone pushes stopped 4 min ago: paused by bea. 1 can wait"),
        ({"switches": [TRIPPED, RUNNING]}, "Pushes of APN old stopped 0 s ago: tripped by a breaker. 1 urgent"),
        ({"switches": [TRIPPED, LONG_PAUSED._replace(devices="Android"), RUNNING]},
         "Android pushes stopped 4 min ago: paused by bea. 1 urgent"),
        ({"switches": [DRAIN, RUNNING]},
         "No pushes are sent: stopped by ann since 2026-11-21 12:00:00 UTC. 1 urgent"),
        ({"switches": [PAUSED, TRIPPED._replace(since=ago(-60))]},
         "No pushes are sent: stopped by bea and a breaker since 2026-11-21 12:01:00 UTC. 1 urgent"),
        ({"gorushes": [replace(GORUSH, is_up=False)]},
         "No pushes are sent: no gorush answers. 1 urgent"),
    ],
)  # fmt: skip
def test_the_verdict_counts(known, words):
    assert overall(indicators(**known))[1] == words


ABOUT = (
    *("Messages get through", "Messages may be late", "Messages fail", "Messages from Waku are", "Nothing "),
    *("No pushes are sent", "Pushes ", "Most pushes ", "Android pushes", "iPhone pushes", "Phones get no pushes"),
    *("No request has", "Only ", "Queries about", "Replies are", "Answers are", "A test message does not get through"),
)


def test_the_usual_number_is_reached_on_most_days():
    weekend_and_week = Flow("", "", [100, 110, *[2400] * 5])
    assert weekend_and_week.usual_per_minute == 110 / 60
    assert Flow("", "").usual_per_minute == 0


def test_durations_are_short():
    words = {0: "0 s", 0.44: "0.4 s", 9.96: "10.0 s", 10: "10 s", 119: "119 s", 120: "2 min", 7200: "2 h"}
    assert {seconds: duration(seconds) for seconds in (*words, 172_800)} == words | {172_800: "2 d"}


def test_the_advice_depends_on_the_code_of_failures_and_on_the_missing_worker():
    for code, words in (("unreachable", "Our own gorush"), ("unavailable", "waiting"), ("tls", "certificate")):
        tries = {("APN app", "transient", code): 30, ("APN app", "ambiguous", "timeout"): 3}
        assert words in one("results", tries=tries).first_step
    first_step = one("workers", queues={"maintenance": False, "keys": False}).first_step
    assert first_step.startswith(
        "Start `celery -A pushserver.worker worker -Q maintenance` and `celery -A pushserver.worker worker -Q keys`. "
    )
