"""Health: facts, the indicators that judge them, incidents, alerts, and the history of traffic.

    asking   asks the servers around us, within seconds, and reads the cache     ┐
    stored   reads the database                                                  ├─ one dict of facts
    parts    add the facts of their own servers and tables                       ┘
    indicators, pushes, and those of parts: facts → verdicts, without I/O
    snapshot facts and verdicts of one moment        incidents  since when each is bad

`traffic` counts each minute, and `hours` adds them up. `hour` reads the last sixty, and `trend` an hour, a day or a
week. `probes` answers `/readyz`. `watch` takes snapshots in workers, and sends `alerts`, so no page is imported here.

See docs/console.md.
"""
