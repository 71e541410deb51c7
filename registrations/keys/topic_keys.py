"""The query topics that are listened to, one for each registered key hash: the statements on their table.

Who listens, and what a name and a topic are, is the matter of the bridge that has such topics.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from django.db import transaction

from kit.db.statements import fetch, write

# In 65 536 rows, sorted by the database, a million topics take a second. With a row for each, reading the rows takes us
# two.
ALL_TOPICS = """
    SELECT topic >> 16, string_agg(substr(int8send(topic), 7), ''::bytea ORDER BY topic)
    FROM (SELECT DISTINCT topic FROM registrations_topickey) AS topics
    GROUP BY topic >> 16
"""
SOMEBODYS = "SELECT topic FROM registrations_topickey WHERE topic = ANY(%b::bigint[])"
WALKED = 5_000  # names looked at in one statement
_INSERT = """
    INSERT INTO registrations_topickey (name, topic, created_at)
    SELECT name, topic, %(now)s FROM unnest(%(names)b::text[], %(topics)b::bigint[]) AS new (name, topic)
    ON CONFLICT (name) DO NOTHING
    RETURNING topic
"""
_OF_NOBODY = """
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
    """Store names with their topics, and return the topics of those that are new.

    They are in one order everywhere, so that two transactions with the same new names do not dead-lock. The later one
    waits for the commit of the earlier, and so for its announcement.
    """
    names = sorted(topics)
    rows = fetch(_INSERT, {"now": now, "names": names, "topics": [topics[name] for name in names]})
    return [topic for (topic,) in rows]


def of_nobody() -> Iterator[list[str]]:
    """Yield the names of keys of which nothing is known any more, those of some rows at a time."""
    [(last,)] = fetch("SELECT coalesce(max(id), 0) FROM registrations_topickey")
    for after in range(0, last, WALKED):
        yield [name for (name,) in fetch(_OF_NOBODY, {"after": after, "up_to": after + WALKED})]


@transaction.atomic
def remove(names: Sequence[str]) -> list[int]:
    """Remove these names, but those that somebody registers at this moment, and return the topics of the others.

    Whoever registers stores the registration first and then the name, unless there is one. So that none is removed
    between the two, this waits for those who have looked for their names, and lets the others wait for a moment.
    """
    write("SET LOCAL lock_timeout = '1s'")
    write("LOCK TABLE registrations_topickey IN SHARE ROW EXCLUSIVE MODE")
    return [topic for (topic,) in fetch(_REMOVE, {"names": names})]
