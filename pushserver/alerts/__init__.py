"""Alerts: each target of ALERTS_TO gets a mail or webhook when an indicator gets bad, and when it has recovered.

    watch ──▶ snapshot ──▶ incidents ──▶ planning ──▶ Alert rows ──▶ sending ──▶ mail, webhook

Each message is a row of `Alert`. So only one worker sends it, and repeats it until the target accepts it. While
PostgreSQL is away there are no rows. Each worker then alerts about PostgreSQL alone, from memory.

See docs/console.md.
"""
