"""Alerts: each target of ALERTS_TO gets a mail or webhook when an indicator gets bad, and when it has recovered.

    watch ──▶ snapshot ──▶ incidents ──▶ planning ──▶ Alert rows ──▶ sending ──▶ mail, webhook

Each message is a row of `Alert`. So only one worker sends it, and repeats it until the target accepts it. While
PostgreSQL cannot be read or written, each worker alerts from memory about what has got bad, and stores the rows
afterwards.

See docs/console.md.
"""
