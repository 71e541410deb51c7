"""SQL of the gauges about a canary's table. It is built from constants only: names of tables and links."""

from collections.abc import Iterable


def link_seconds(table: str, links: Iterable[str]) -> str:
    """Return a query for the seconds that each link took in the last round trip."""
    columns = ", ".join(f"('{link}', {link}_ms)" for link in links)
    last = f"SELECT * FROM {table} WHERE state IN ('passed', 'broken') ORDER BY started_at DESC LIMIT 1"
    return f"""
        SELECT link, milliseconds / 1000.0 FROM ({last}) AS run
        CROSS JOIN LATERAL (VALUES {columns}) AS links (link, milliseconds)
    """
