"""Passage of each message through the server, by PostgreSQL's own record.

Triggers record every offer to the inbox, also one that is refused as known, and every end of an envelope. Each record
is part of the transaction that it is about.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from tests.chaos.bridges import Lag
from tests.chaos.outages import Struck
from tests.chaos.tables import at_share, print_table

AUDIT = """
    CREATE TABLE audit_offer (hash bytea);
    CREATE TABLE audit_taken (hash bytea, path text, at timestamptz DEFAULT clock_timestamp());
    CREATE TABLE audit_end (hash bytea, state text);
    CREATE FUNCTION note_offer() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO audit_offer (hash) VALUES (NEW.hash); RETURN NEW; END $$;
    CREATE FUNCTION note_taken() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO audit_taken (hash, path) VALUES (NEW.hash, NEW.path); RETURN NEW; END $$;
    CREATE FUNCTION note_end() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO audit_end (hash, state) VALUES (NEW.hash, NEW.state); RETURN NEW; END $$;
    CREATE TRIGGER note_offer BEFORE INSERT ON waku_bridge_envelopehash FOR EACH ROW EXECUTE FUNCTION note_offer();
    CREATE TRIGGER note_taken AFTER INSERT ON waku_bridge_inboundenvelope FOR EACH ROW
        WHEN (NEW.state = 'received') EXECUTE FUNCTION note_taken();
    -- An ended row is inserted into the partition of its day, by an update or by a deletion and an insertion.
    CREATE TRIGGER note_end AFTER INSERT OR UPDATE OF state ON waku_bridge_inboundenvelope FOR EACH ROW
        WHEN (NEW.state NOT IN ('received', 'postponed')) EXECUTE FUNCTION note_end();
"""
OFFERS = "SELECT hash, count(*) FROM audit_offer GROUP BY 1"
TAKEN = "SELECT hash, path, extract(epoch FROM at)::float8 FROM audit_taken ORDER BY at DESC"
ENDS = "SELECT hash, state FROM audit_end"
REPLIES = "SELECT envelope_hash, count(*) FROM waku_bridge_outboundreply GROUP BY 1"
REQUESTS = "SELECT source_key, count(*) FROM notifications_notificationrequest GROUP BY 1"
DEAD_LETTERS = "SELECT reason, count(*) FROM waku_bridge_deadletter GROUP BY 1"
SO_FAR = """
    SELECT count(*), count(*) FILTER (WHERE state IN ('received', 'postponed')),
        (SELECT count(*) FROM waku_bridge_deadletter)
    FROM waku_bridge_inboundenvelope
"""


@dataclass(frozen=True, slots=True)
class Passages:
    """Record of all messages, by hash.

    ``offers`` counts how often each message was offered to the inbox; a store does not offer a message that the inbox
    has. ``taken`` has the path by which it came in, with the Unix time. ``ends`` are the states that processing left it
    in.
    """

    sent_at: Mapping[bytes, float]
    offers: Mapping[bytes, int]
    taken: Mapping[bytes, tuple[str, float]]
    ends: Mapping[bytes, Sequence[str]]
    replies: Mapping[bytes, int]
    requests: Mapping[bytes, int]
    dead_letters: Mapping[str, int]

    @property
    def lost(self) -> list[bytes]:
        return [each for each in self.sent_at if each not in self.taken]

    @property
    def unprocessed(self) -> list[bytes]:
        return [each for each in self.sent_at if self.ends.get(each, ())[-1:] != ["processed"]]

    @property
    def doubled(self) -> list[bytes]:
        """Return the messages that ended, made a request or got a reply more than once."""
        counts = (Counter({each: len(ends) for each, ends in self.ends.items()}), self.replies, self.requests)
        return [each for each in self.sent_at if any(count[each] > 1 for count in counts)]

    @property
    def unanswered(self) -> list[bytes]:
        return [each for each in self.sent_at if not self.replies.get(each) or not self.requests.get(each)]

    def ways(self) -> Counter[str]:
        """Count the messages by the path that had them first: live, or a store."""
        return Counter(self.taken[each][0] for each in self.sent_at if each in self.taken)

    def only_stores_had(self, struck: Iterable[Struck]) -> int:
        """Count the messages sent during these faults that a store had first."""
        spans = [(each.began_at, each.ended_at) for each in struck]
        sent = [each for each, at in self.sent_at.items() if any(begin <= at <= end for begin, end in spans)]
        return sum(self.taken[each][0] == "store" for each in sent if each in self.taken)

    @property
    def suppressed(self) -> int:
        """Return the number of offers of messages that were known already."""
        return sum(count - 1 for count in self.offers.values())

    def delays(self) -> list[float]:
        """Return the seconds from a node to the inbox, shortest first."""
        return sorted(self.taken[each][1] - at for each, at in self.sent_at.items() if each in self.taken)

    def recovery_seconds(self, struck: Struck) -> float:
        """Return the seconds from the end of a fault until everything sent during it was in the inbox."""
        sent = [each for each, at in self.sent_at.items() if struck.began_at <= at <= struck.ended_at]
        stored = [self.taken[each][1] for each in sent if each in self.taken]
        return max(0.0, max(stored, default=0.0) - struck.ended_at)


def watch(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(AUDIT)


def so_far(database_url: str) -> tuple[int, int, int]:
    """Count the envelopes, the undecided ones among them, and the dead letters."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        [(known, undecided, dead)] = connection.execute(SO_FAR).fetchall()
    return known, undecided, dead


def collect(database_url: str, sent_at: Mapping[bytes, float]) -> Passages:
    taken: dict[bytes, tuple[str, float]] = {}
    ends: dict[bytes, list[str]] = {}
    with psycopg.connect(database_url, autocommit=True) as connection:
        for digest, path, at in connection.execute(TAKEN):
            taken[bytes(digest)] = (path, at)
        for digest, state in connection.execute(ENDS):
            ends.setdefault(bytes(digest), []).append(state)
        offers, replies, requests = (
            Counter({bytes(digest): count for digest, count in connection.execute(sql)})
            for sql in (OFFERS, REPLIES, REQUESTS)
        )
        dead_letters = dict(connection.execute(DEAD_LETTERS).fetchall())
    return Passages(sent_at, offers, taken, ends, replies, requests, dead_letters)


def show(passages: Passages, struck: Iterable[Struck], lag: Lag, archived: set[bytes]) -> None:
    """Print the figures of a run. ``archived`` has the messages that the stores hold at the end."""
    ways = passages.ways()
    not_archived = sum(each not in archived for each in passages.sent_at)
    delays = passages.delays()
    rows = [
        ("messages for us", len(passages.sent_at)),
        ("lost", len(passages.lost)),
        ("processed twice", len(passages.doubled)),
        ("by the live path", ways["live"]),
        ("by a store that had it first", ways["store"]),
        ("live only, in no store", not_archived),
        ("repetitions suppressed", passages.suppressed),
        ("dead letters", sum(passages.dead_letters.values())),
        *((f"until in the inbox, {share:.1%}", f"{at_share(delays, share):.2f} s") for share in (0.5, 0.9, 0.99, 1)),
    ]
    print_table("Passages", ("figure", "count"), rows)
    recoveries = [
        (
            each.name,
            f"{each.ended_at - each.began_at:.1f}",
            f"{passages.recovery_seconds(each):.1f}",
            "" if each.takeover_seconds is None else f"{each.takeover_seconds:.1f}",
        )
        for each in struck
    ]
    print_table("Faults", ("fault", "lasted, s", "all in the inbox after, s", "read again after, s"), recoveries)
    lags = [(f"{at:.0f}", "database away" if worst is None else f"{worst:.0f}") for at, worst in lag.worst_by(10)]
    print_table("Watermark lag", ("from second", "largest of ten, s"), lags)
