"""Traces: the way of one message through all processes, and errors, for a collector that speaks OTLP over HTTP.

    key of a message ──keyed digest──▶ id of its trace, and whether it is traced: the same in every process
                                             │
    what a process does for a message ───────┴──▶ span ──▶ gate (`allowed`) ──▶ collector

So nothing is stored for a trace or handed from process to process, and nothing is done at all while tracing is off: the
protocol of OpenTelemetry is imported with the first span. This package knows none of the apps.

See docs/monitoring/README.md.
"""
