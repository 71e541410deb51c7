"""Alerts: each target of ALERTS_TO gets a message by mail or webhook when an indicator gets bad, and when it is fine.

    watch ──▶ snapshot ──▶ incidents ──▶ planning ──▶ Alert rows ──▶ sending ──▶ mail, webhook

Each message is a row of `Alert`, so that it is sent once, whichever worker does it, and repeated until it is taken.
While PostgreSQL is away there are no rows: each worker then alerts about that alone, from memory.

See docs/console.md.
"""
