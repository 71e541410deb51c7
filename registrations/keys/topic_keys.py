"""Statements on the table of query topics, one for each registered key hash.

The bridge with such topics defines names and topics, and listens to them.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from django.db import transaction

from kit.db.statements import fetch, write

# With 65 536 rows, sorted by PostgreSQL, a million topics are read in one second. With a row per topic it takes two.
ALL_TOPICS = """
    SELECT topic >> 16, string_agg(substr(int8send(topic), 7), ''::bytea ORDER BY topic)
    FROM (SELECT DISTINCT topic FROM registrations_topickey) AS topics
    GROUP BY topic >> 16
"""
STILL_USED = "SELECT topic FROM registrations_topickey WHERE topic = ANY(%b::bigint[])"
WALKED = 5_000  # rows that one statement reads
_INSERT = """
    INSERT INTO registrations_topickey (name, topic, created_at)
    SELECT name, topic, %(now)s FROM unnest(%(names)b::text[], %(topics)b::bigint[]) AS new (name, topic)
    ON CONFLICT (name) DO NOTHING
    RETURNING topic
"""
_WITHOUT_REGISTRATION = """
    SELECT name FROM registrations_topickey WHERE id > %(after)s AND id <= %(up_to)s AND NOT EXISTS (
        SELECT FROM registrations_registration WHERE public_key_hash = decode(name, 'hex')
    )
"""
_REMOVE = """
    DELETE FROM registrations_topickey WHERE name = ANY (%(names)s::text[]) AND NOT EXISTS (
        SELECT FROM registrations_registration WHERE public_key_hash = decode(name, 'hex')
    ) RETURNING topic
"""


def insert(topics: Mapping[str, int], *, now: datetime) -> list[int]:
    """Store names with their topics, and return the topics of the new names.

    The names are sorted, so that two transactions with the same new names do not dead-lock. The later one waits for the
    commit of the earlier one, and so for its announcement.
    """
    names = sorted(topics)
    rows = fetch(_INSERT, {"now": now, "names": names, "topics": [topics[name] for name in names]})
    return [topic for (topic,) in rows]


def without_registration() -> Iterator[list[str]]:
    """Yield lists of names of key hashes that have no registration any more, one list per `WALKED` rows."""
    [(last,)] = fetch("SELECT coalesce(max(id), 0) FROM registrations_topickey")
    for after in range(0, last, WALKED):
        yield [name for (name,) in fetch(_WITHOUT_REGISTRATION, {"after": after, "up_to": after + WALKED})]


@transaction.atomic
def remove(names: Sequence[str]) -> list[int]:
    """Remove these names, except those that are just being registered, and return the topics of the removed ones.

    A registering transaction stores the registration first, and then its name if it is missing. The lock of the table
    waits for transactions that have already looked for their name, and makes later ones wait for a moment. So no name
    is removed between the two steps.
    """
    write("SET LOCAL lock_timeout = '1s'")
    write("LOCK TABLE registrations_topickey IN SHARE ROW EXCLUSIVE MODE")
    return [topic for (topic,) in fetch(_REMOVE, {"names": names})]
