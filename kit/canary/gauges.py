"""SQL of the gauges that a canary's table answers. All of it is our own words: names of tables, links and causes."""

from collections.abc import Iterable


def link_seconds(table: str, links: Iterable[str]) -> str:
    """Return how long each link took in the last round trip."""
    columns = ", ".join(f"('{link}', {link}_ms)" for link in links)
    return f"""
        SELECT link, milliseconds / 1000.0 FROM ({_last(table)}) AS run
        CROSS JOIN LATERAL (VALUES {columns}) AS links (link, milliseconds)
    """


def broken(table: str, causes: Iterable[str]) -> str:
    """Return 1 for the cause that the last round trip was broken for, and 0 for the others."""
    return f"""
        SELECT cause, (cause = run.found)::int FROM (SELECT cause AS found FROM ({_last(table)}) AS last) AS run
        CROSS JOIN unnest(ARRAY[{", ".join(f"'{cause}'" for cause in causes)}]) AS cause
    """


def last_success(table: str) -> str:
    """Return when all links held for the last time."""
    return f"""
        SELECT extract(epoch FROM finished_at) FROM {table} WHERE state = 'passed' ORDER BY started_at DESC LIMIT 1
    """


def _last(table: str) -> str:
    return f"SELECT * FROM {table} WHERE state IN ('passed', 'broken') ORDER BY started_at DESC LIMIT 1"
