"""Story of each notification: the server's record, the pushes that Apple and Google received, and whether the two
agree.
"""

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from notifications.rules.reports import unpack
from tests.chaos.tables import print_table
from tests.rig.network import Network
from tests.rig.server import wait_until

STORIES = """
    SELECT request.message_id, notification.state, request.decided, coalesce(route.state, ''),
        array(SELECT code FROM notifications_attempt
              WHERE notification_id = notification.id AND outcome = 'ambiguous' ORDER BY number),
        array(SELECT extract(epoch FROM started_at)::float8 FROM notifications_attempt
              WHERE notification_id = notification.id ORDER BY number),
        envelope.timestamp_ns / 1e9,
        extract(epoch FROM request.received_at),
        extract(epoch FROM request.answered_at),
        extract(epoch FROM reply.published_at),
        extract(epoch FROM notification.finished_at)
    FROM notifications_notificationrequest AS request
    LEFT JOIN notifications_notification AS notification ON notification.request_id = request.id
    LEFT JOIN registrations_route AS route ON route.id = notification.route_id
    LEFT JOIN waku_bridge_inboundenvelope AS envelope ON envelope.hash = request.source_key
    LEFT JOIN waku_bridge_outboundreply AS reply ON reply.envelope_hash = request.source_key
    WHERE request.message_id = ANY(%s)
"""

OPEN = """
    SELECT (SELECT count(*) FROM notifications_notification AS notification
            JOIN notifications_notificationrequest AS request ON request.id = notification.request_id
            WHERE notification.state IN ('pending', 'in_flight', 'retrying', 'ambiguous')
              AND (notification.state NOT IN ('retrying', 'ambiguous') OR request.message_id <> ALL(%s)))
         + (SELECT count(*) FROM waku_bridge_outboundreply WHERE state = 'pending')
"""
HURRY = """
    UPDATE notifications_notification AS notification SET next_attempt_at = now()
    FROM notifications_notificationrequest AS request
    WHERE request.id = notification.request_id AND notification.state IN ('retrying', 'ambiguous')
      AND notification.next_attempt_at > now() + interval '20 seconds' AND request.message_id <> ALL(%s)
    RETURNING notification.id
"""
# Tables in which something may be stuck, printed when a run does not end.
TABLES = (
    "waku_bridge_inboundenvelope",
    "notifications_notificationrequest",
    "notifications_notification",
    "waku_bridge_outboundreply",
)
OVER_SECONDS = 400


@dataclass(frozen=True, slots=True)
class Story:
    """One notification. ``ambiguities`` are the codes of attempts with an unknown end, ``accepted`` the pushes that
    Apple or Google took, ``starts`` the times of our attempts.

    The other Unix times are in order: the sender sends, the server reads the request, its answer is fixed, the reply
    goes out (None without a reply), and the notification ends.
    """

    fate: str
    state: str
    route_state: str
    ambiguities: tuple[str, ...]
    accepted: tuple[Mapping[str, Any], ...]
    starts: tuple[float, ...]
    sent_at: float
    known_at: float
    answered_at: float
    replied_at: float | None
    finished_at: float

    @property
    def is_lost(self) -> bool:
        return not self.accepted

    @property
    def is_doubled(self) -> bool:
        return len(self.accepted) > 1

    @property
    def collapse_ids(self) -> set[str]:
        return {push["collapse_id"] for push in self.accepted}

    @property
    def explained_pushes(self) -> int:
        """Count the pushes that are explained: one, one for each ambiguous attempt, and those that the Firebase SDK
        repeated.
        """
        return 1 + len(self.ambiguities) + self.repeated_by_firebase

    @property
    def repeated_by_firebase(self) -> int:
        """Count the pushes that the Firebase SDK repeated. It sends a message again within one attempt of ours when the
        connection broke before Google's answer.
        """
        attempts = Counter(
            bisect(self.starts, (push["received_ms"] + 1) / 1000)
            for push in self.accepted
            if push["platform"] == "android"
        )
        return attempts.total() - len(attempts)

    @property
    def reply_seconds(self) -> float:
        """Return the seconds until the sender had its reply, which are more on an overloaded machine."""
        return float("inf") if self.replied_at is None else self.replied_at - self.sent_at

    @property
    def answer_seconds(self) -> float:
        """Return the seconds from reading the request to its answer."""
        return self.answered_at - self.known_at


def collect(network: Network, fates: Mapping[bytes, str]) -> dict[bytes, Story]:
    """Collect the stories by Status message id, and fail unless each message has one notification."""
    accepted: dict[bytes, list[Mapping[str, Any]]] = {message_id: [] for message_id in fates}
    for push in network.pushes():
        if not push["error"] and "encryptedMessage" in push["data"]:  # no push of XMPP
            accepted[bytes.fromhex(push["data"]["encryptedMessage"].removeprefix("0x"))].append(push)
    rows = network.rows(STORIES, list(fates))
    stories = {
        bytes(message_id): Story(
            fates[bytes(message_id)],
            _end(state, decided),
            route_state,
            tuple(ambiguities),
            tuple(accepted[bytes(message_id)]),
            tuple(starts),
            *(None if at is None else float(at) for at in times),
        )
        for message_id, state, decided, route_state, ambiguities, starts, *times in rows
    }
    assert len(stories) == len(rows) == len(fates), f"{len(rows)} ends of {len(stories)} notifications of {len(fates)}"
    return stories


def _end(state: str | None, decided: bytes | None) -> str:
    """Return the state of a notification, or the decision about one that has no row because it was decided at once."""
    if state:
        return state
    [only] = unpack(decided)
    return "refused" if only.error else str(only.verdict)


def show(title: str, stories: Iterable[Story]) -> None:
    """Print how the notifications ended, then why some were pushed more than once."""
    stories = list(stories)
    ends: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for story in stories:
        ends[story.fate or "(none)", story.state].append(len(story.accepted))
    rows = [
        (*end, len(counts), counts.count(0), counts.count(1), sum(n > 1 for n in counts), max(counts))
        for end, counts in sorted(ends.items())
    ]
    print_table(title, ("fate", "state", "count", "never accepted", "once", "more often", "at most"), rows)
    reasons = Counter(_why(story) for story in stories if story.is_doubled)
    print_table("Accepted more than once, because of", ("uncertain ends", "count"), reasons.most_common())


def _why(story: Story) -> str:
    return ", ".join(
        sorted({*story.ambiguities, *(["repeated by Firebase's SDK"] if story.repeated_by_firebase else [])})
    )


def wait_until_over(network: Network, fates: Collection[bytes], endless: Sequence[bytes] = ()) -> None:
    """Wait until every notification but those in ``endless`` has ended. Every attempt of the latter fails until they
    expire. Long pauses between attempts are shortened.
    """
    endless = list(endless)

    def is_over() -> bool:
        network.rows(HURRY, endless)
        return network.rows(OPEN, endless) == [(0,)]

    try:
        wait_until(lambda: known(network) == len(fates), seconds=120, pause_seconds=1, what="all requests are read")
        wait_until(is_over, seconds=OVER_SECONDS, pause_seconds=1, what="every notification has ended")
    except AssertionError:
        for table in TABLES:
            say((table, network.rows(f"SELECT state, count(*) FROM {table} GROUP BY 1")))
        raise


def known(network: Network) -> int:
    """Count the requests over Waku that the server has read."""
    [(count,)] = network.rows("SELECT count(*) FROM notifications_notificationrequest WHERE bridge = 'waku'")
    return int(count)


def say(line: object) -> None:
    Console(width=140).print(line)
