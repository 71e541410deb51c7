"""Traces of messages through all processes, and error reports, for a collector that speaks OTLP over HTTP.

    key of a message ──keyed digest──▶ id of its trace, and whether it is traced: the same in every process
                                             │
    work of a process for a message ─────────┴──▶ span ──▶ gate (`allowed`) ──▶ collector

So a trace needs no storage, and processes need not pass its id to each other. While tracing is off it costs nothing:
the protocol of OpenTelemetry is imported with the first span. This package imports none of the apps.

See docs/monitoring/README.md.
"""
