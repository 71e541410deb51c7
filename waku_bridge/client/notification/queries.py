"""Queries of a sender, which find where a client can be notified: one at a time for each client.

Each query has an ephemeral key of its own. So nobody can tell that two queries come from the same sender, and the key
that an answer is sealed for identifies the query.

Everybody sees a query and may answer it. So only an answer with a verified entry ends the waiting, and even then a
moment later, because other servers may have other devices.
"""

from dataclasses import dataclass, field

from waku_bridge.client.core import new_identity, topic_key
from waku_bridge.client.notification.asking import ask_for
from waku_bridge.client.registration.schedules import SECOND_NS
from waku_bridge.codec import topics
from waku_bridge.codec.keys import Identity, RandomBytes, key_hash
from waku_bridge.messages import WakuMessage


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of a sender: for an answer, and after a useful answer for those of other servers.

    Destinations that are older than ``fresh_seconds`` are queried again.
    """

    answer_seconds: float = 3.0
    gather_seconds: float = 0.3
    fresh_seconds: float = 86400.0


@dataclass(slots=True)
class Question:
    """A query. ``key`` signed it and opens its answers, which repeat its ``query_id`` (32 bytes)."""

    client: bytes
    key: Identity
    query_id: bytes
    asked_ns: int
    ends_ns: int
    answered_by: set[bytes] = field(default_factory=set)
    is_over: bool = False


class Queries:
    """The queries of one sender, the latest for each client."""

    def __init__(self, random_bytes: RandomBytes, timeouts: Timeouts) -> None:
        self._random_bytes = random_bytes
        self._timeouts = timeouts
        self._latest: dict[bytes, Question] = {}

    def ask(self, client: bytes, now_ns: int) -> tuple[Question, WakuMessage]:
        """Start a query. The first one for a client costs 15 ms of CPU time."""
        key = new_identity(self._random_bytes)
        encoded = ask_for(
            client,
            signer=key,
            topic_key=topic_key(topics.query_name(key_hash(client))),
            timestamp_ns=now_ns,
            random_bytes=self._random_bytes,
        )
        ends_ns = now_ns + round(self._timeouts.answer_seconds * SECOND_NS)
        question = Question(client, key, encoded.message_id, now_ns, ends_ns)
        self._latest[client] = question
        return question, encoded.message

    def latest(self, client: bytes) -> Question | None:
        """Return the last query about this client."""
        return self._latest.get(client)

    def is_open(self, client: bytes) -> bool:
        """Return whether a query about this client waits for answers."""
        question = self._latest.get(client)
        return question is not None and not question.is_over

    def note_useful(self, question: Question, now_ns: int) -> None:
        """Wait only ``gather_seconds`` longer, because an answer had a verified entry."""
        question.ends_ns = min(question.ends_ns, now_ns + round(self._timeouts.gather_seconds * SECOND_NS))

    def close_due(self, now_ns: int) -> list[Question]:
        """Close the queries whose time is up, and return them."""
        due = [question for question in self._latest.values() if not question.is_over and now_ns >= question.ends_ns]
        for question in due:
            question.is_over = True
        return due

    def deadlines(self) -> list[int]:
        """Return when the open queries end."""
        return [question.ends_ns for question in self._latest.values() if not question.is_over]
