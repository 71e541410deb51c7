"""Listening to more: the topics of newly registered key hashes, stored and announced in the caller's transaction. And
to less: that of somebody who was forgotten.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from django.db import connection

from registrations.models import TopicKey
from waku_bridge.codec import topics

CHANNEL = "query_topics"
GONE_CHANNEL = "query_topics_gone"
# PostgreSQL takes less than 8 000 bytes per notification; a topic takes up to ten digits and a comma.
TOPICS_PER_NOTICE = 700


def listen_to(public_key_hashes: Iterable[bytes], *, now: datetime) -> None:
    """Add the query topics of these key hashes (64 bytes each), and tell the bridges when the transaction commits.

    Most registrations are refreshed ones: their topics are known already, and are not announced again.
    """
    names = {topics.query_name(public_key_hash) for public_key_hash in public_key_hashes}
    if names and (new := _insert(sorted(names), now)):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, notice) FROM unnest(%s::text[]) AS notice", [CHANNEL, list(new)])


def _insert(names: Sequence[str], now: datetime) -> list[str]:
    """Notices of those that are new. In one order everywhere, so that two transactions with the same new names do not
    dead-lock; the later one waits for the commit of the earlier, and so for its announcement.
    """
    numbers = [int.from_bytes(topics.topic(name)) for name in names]
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO registrations_topickey (name, topic, created_at)
            SELECT name, topic, %s FROM unnest(%s::text[], %s::bigint[]) AS new (name, topic)
            ON CONFLICT (name) DO NOTHING
            RETURNING topic
            """,
            [now, list(names), numbers],
        )
        return list(_notices([str(row[0]) for row in cursor.fetchall()]))


def _notices(new: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(new), TOPICS_PER_NOTICE):
        yield ",".join(new[start : start + TOPICS_PER_NOTICE])


def stop_listening_to(name: str) -> None:
    """Remove a name, and tell the bridges when the transaction commits. Its topic may be somebody else's, too: whoever
    hears of it has to look.
    """
    TopicKey.objects.filter(name=name).delete()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [GONE_CHANNEL, str(int.from_bytes(topics.topic(name)))])


def read_notice(notice: str) -> list[int]:
    return [int(topic) for topic in notice.split(",")]
