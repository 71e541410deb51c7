"""Ledger of a run with faults: what was lost, doubled or late, by the records of senders, server, Apple and Google."""

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.rig.load import Pushes, collapse_ids, pushes_by_message
from tests.rig.network import OPEN_STATES, Network
from tests.rig.server import wait_until

STORIES = """
    SELECT request.message_id, notification.state, envelope.path,
        array(SELECT code FROM notifications_attempt
              WHERE notification_id = notification.id AND outcome = 'ambiguous' ORDER BY number),
        array(SELECT extract(epoch FROM started_at)::float8 FROM notifications_attempt
              WHERE notification_id = notification.id ORDER BY number),
        (SELECT count(*) FROM waku_bridge_outboundreply WHERE envelope_hash = request.source_key),
        (envelope.timestamp_ns / 1e9)::float8,
        extract(epoch FROM reply.published_at)::float8,
        extract(epoch FROM notification.finished_at)::float8
    FROM notifications_notificationrequest AS request
    LEFT JOIN notifications_notification AS notification ON notification.request_id = request.id
    LEFT JOIN waku_bridge_inboundenvelope AS envelope ON envelope.hash = request.source_key
    LEFT JOIN waku_bridge_outboundreply AS reply ON reply.envelope_hash = request.source_key
    WHERE request.message_id = ANY(%s)
"""
KNOWN = "SELECT count(*) FROM notifications_notificationrequest WHERE bridge = 'waku'"
OPEN = """
    SELECT (SELECT count(*) FROM notifications_notification WHERE state = ANY(%s))
         + (SELECT count(*) FROM waku_bridge_outboundreply WHERE state = 'pending')
"""
HURRY = """
    UPDATE notifications_opennotification SET due_at = now()
    WHERE state IN ('retrying', 'ambiguous') AND due_at > now() + interval '20 seconds' RETURNING id
"""
# Tables in which something may be stuck, printed when a run does not end.
TABLES = (
    "waku_bridge_inboundenvelope",
    "notifications_notificationrequest",
    "notifications_notification",
    "waku_bridge_outboundreply",
)
OVER_SECONDS = 400
CLIENTS_WAIT_SECONDS = 3.0

Excuse = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Story:
    """One notification over Waku. ``path`` is that of its request: live, or a store. ``ambiguities`` are the codes of
    attempts with an unknown end, ``accepted`` the pushes that Apple or Google took, ``starts`` the times of our
    attempts.

    The other Unix times are when the sender sent, when the reply went out (None without a reply), and when the
    notification ended.
    """

    accepted: Sequence[Mapping[str, Any]]
    state: str
    path: str
    ambiguities: Sequence[str]
    starts: Sequence[float]
    replies: int
    sent_at: float
    replied_at: float | None
    finished_at: float

    @property
    def is_doubled(self) -> bool:
        return len(self.accepted) > 1

    @property
    def is_split(self) -> bool:
        """Return whether a phone could show it twice."""
        return self.is_doubled and len({push["collapse_id"] or object() for push in self.accepted}) > 1

    @property
    def is_explained(self) -> bool:
        """Return whether each push but one has a reason: an attempt with an unknown end, or Firebase's SDK.

        The SDK sends a message again within one attempt of ours when the connection broke before Google's answer.
        """
        attempts = Counter(
            bisect(self.starts, (push["received_ms"] + 1) / 1000)
            for push in self.accepted
            if push["platform"] == "android"
        )
        return len(self.accepted) <= 1 + len(self.ambiguities) + attempts.total() - len(attempts)

    @property
    def reply_seconds(self) -> float:
        """Return the seconds until the sender had its reply."""
        return float("inf") if self.replied_at is None else self.replied_at - self.sent_at


def collect(network: Network, message_ids: Collection[bytes]) -> list[Story]:
    """Collect the stories, and fail unless each message has one notification."""
    accepted = pushes_by_message(network, message_ids)
    rows = network.rows(STORIES, list(message_ids))
    known = {bytes(message_id) for message_id, *_ in rows}
    assert len(known) == len(rows) == len(message_ids), f"{len(rows)} ends of {len(known)} of {len(message_ids)}"
    return [Story(accepted[bytes(message_id)], *facts) for message_id, *facts in rows]


def wait_until_over(network: Network, sent: Collection[object]) -> None:
    """Wait until all these requests are known and nothing is open. Long pauses between attempts are shortened."""

    def is_over() -> bool:
        network.rows(HURRY)
        return network.rows(OPEN, list(OPEN_STATES)) == [(0,)]

    def known() -> int:
        return int(network.rows(KNOWN)[0][0])

    try:
        wait_until(lambda: known() == len(sent), seconds=120, pause_seconds=1, what="all requests are read")
        wait_until(is_over, seconds=OVER_SECONDS, pause_seconds=1, what="every notification has ended")
    except AssertionError:
        say(f"{len(sent)} sent, {known()} known")
        for table in TABLES:
            say((table, network.rows(f"SELECT state, count(*) FROM {table} GROUP BY 1")))
        raise


def judge(stories: Collection[Story], *, is_excused: Excuse) -> None:
    """Check what happened to requests over Waku.

    All are delivered, every double has one collapse id, and each request has one reply. It is late only when the time
    of its request is excused.
    """
    doubled = [s for s in stories if s.is_doubled]
    late = [s for s in stories if s.reply_seconds > CLIENTS_WAIT_SECONDS]
    unexplained = [s for s in late if not is_excused(s.sent_at)]
    say(
        f"Waku: {len(stories)} requests, {sum(not s.accepted for s in stories)} lost, {len(doubled)} doubled;"
        f" {len(late)} replies later than {CLIENTS_WAIT_SECONDS} s, {len(unexplained)} of them without an excuse"
    )
    reasons = Counter(", ".join(sorted(set(story.ambiguities))) for story in doubled)
    print_table("Accepted more than once, because of", ("uncertain ends", "count"), reasons.most_common())
    assert not [s for s in stories if not s.accepted or s.state != "delivered"]
    assert not [s for s in doubled if s.is_split]
    assert {s.replies for s in stories} == {1}
    assert not unexplained


def judge_pushes(
    sent: Pushes, accepted: Iterable[Mapping[str, Any]], *, is_excused: Excuse, is_cut: Excuse = lambda _: False
) -> None:
    """Check what happened to pushes over XMPP: every request was acknowledged, none is lost, and every double has one
    collapse id.

    A push whose sender has the refusal is not lost. A message stanza has no answer, so it may be lost at times that are
    excused. Anything may be lost at times that are cut off.
    """
    ids = collapse_ids(accepted)
    missing = [text for text in sent.at if text not in ids]
    lost = [text for text in missing if text in sent.requests or sent.ids[text] not in sent.refused]
    explained = {
        text for text in lost if is_cut(sent.at[text]) or (text not in sent.requests and is_excused(sent.at[text]))
    }
    unexplained = [text for text in lost if text not in explained]
    split = [text for text, found in ids.items() if len(set(found)) > 1]
    say(
        f"XMPP: {len(sent.at)} pushes, {len(sent.requests)} of them with an answer, {sent.repeated} sent again;"
        f" {len(lost)} lost, {len(unexplained)} of them without an excuse;"
        f" {sum(len(found) > 1 for found in ids.values())} doubled, {len(split)} of them under several collapse ids;"
        f" refused: {dict(Counter(sent.refused.values()))}"
    )
    assert not sent.unanswered
    assert set(sent.requests.values()) <= sent.stored.keys()
    assert not unexplained
    assert not split


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=140).print(table)


def at_share(ascending: Sequence[float], share: float) -> float:
    """Return the value that this share of all does not exceed, or 0 of none."""
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else 0.0


def say(line: object) -> None:
    Console(width=140).print(line)
