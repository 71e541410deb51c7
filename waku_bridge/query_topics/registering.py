"""Listening to the topics of newly registered key hashes, and no longer to those of erased users.

Both are stored and announced in the caller's transaction.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from django.db import connection, transaction

from kit.db.statements import fetch
from registrations.models import TopicKey
from waku_bridge.codec import topics

CHANNEL = "query_topics"
GONE_CHANNEL = "query_topics_gone"
# PostgreSQL takes less than 8 000 bytes per notification, and a topic takes up to ten digits and a comma.
TOPICS_PER_NOTICE = 700
WALKED = 5_000  # names looked at in one statement


def listen_to(public_key_hashes: Iterable[bytes], *, now: datetime) -> None:
    """Add the query topics of these key hashes (64 bytes each), and tell the bridges when the transaction commits.

    Most registrations are refreshed ones: their topics are known already, and are not announced again.
    """
    names = {topics.query_name(public_key_hash) for public_key_hash in public_key_hashes}
    if names and (new := _insert(sorted(names), now)):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, notice) FROM unnest(%s::text[]) AS notice", [CHANNEL, list(new)])


def _insert(names: Sequence[str], now: datetime) -> list[str]:
    """Store the names, and return the notices about those that are new.

    They are in one order everywhere, so that two transactions with the same new names do not dead-lock. The later one
    waits for the commit of the earlier, and so for its announcement.
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
        return list(_notices([str(topic) for (topic,) in cursor.fetchall()]))


def _notices(new: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(new), TOPICS_PER_NOTICE):
        yield ",".join(new[start : start + TOPICS_PER_NOTICE])


def stop_listening_to(name: str) -> None:
    """Remove a name, and tell the bridges when the transaction commits.

    Its topic may be somebody else's too, so that a bridge has to ask before it drops the topic.
    """
    TopicKey.objects.filter(name=name).delete()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [GONE_CHANNEL, str(int.from_bytes(topics.topic(name)))])


_OF_NOBODY = """
    SELECT name FROM registrations_topickey WHERE id > %(after)s AND id <= %(up_to)s AND NOT EXISTS (
        SELECT FROM registrations_registration WHERE public_key_hash = decode(name, 'hex')
    )
"""
_REMOVE = """
    WITH removed AS (
        DELETE FROM registrations_topickey WHERE name = ANY (%(names)s::text[]) AND NOT EXISTS (
            SELECT FROM registrations_registration WHERE public_key_hash = decode(name, 'hex')
        ) RETURNING topic
    )
    SELECT count(pg_notify(%(channel)s, topic::text)) FROM removed
"""


def stop_listening_to_nobody() -> Iterator[int]:
    """Remove the names of keys of which nothing is known any more. Yield how many each step removed."""
    [(last,)] = fetch("SELECT coalesce(max(id), 0) FROM registrations_topickey")
    for after in range(0, last, WALKED):
        found = [name for (name,) in fetch(_OF_NOBODY, {"after": after, "up_to": after + WALKED})]
        yield _remove(found) if found else 0


def _remove(names: Sequence[str]) -> int:
    """Remove these names, but those that somebody registers at this moment.

    Whoever registers stores the registration first and then the name, unless there is one. So that none is removed
    between the two, this waits for those who have looked for their names, and lets the others wait for a moment.
    """
    with transaction.atomic():
        fetch("SET LOCAL lock_timeout = '1s'")
        fetch("LOCK TABLE registrations_topickey IN SHARE ROW EXCLUSIVE MODE")
        [(removed,)] = fetch(_REMOVE, {"names": names, "channel": GONE_CHANNEL})
        return int(removed)


def read_notice(notice: str) -> list[int]:
    """Return the topics that a notice names."""
    return [int(topic) for topic in notice.split(",")]
