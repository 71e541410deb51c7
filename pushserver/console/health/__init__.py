"""Health: indicators and the facts that they judge, incidents, alerts, and the history of traffic.

`asking` asks the servers around us, within seconds, and reads the cache. `stored` reads the database. The modules of
`kinds` judge these facts without I/O; gateways and bridges judge theirs (`console.parts`). `judging` puts all
indicators into one list, `incidents` stores since when each is bad, and `snapshot` has everything of one moment.
Nothing here imports a page, because workers take snapshots, too.

See docs/console.md.
"""
