"""The health indicators of the server, as one list for the dashboard, the API, metrics, alerts and probes.

`asking` asks the servers around us, within seconds, and reads the cache. `stored` reads the database. The modules of
`kinds` judge these facts without I/O; gateways and bridges judge theirs (`kit.operations`). `judging` puts all
indicators into one list, `incidents` stores since when each is bad, and `snapshot` has everything of one moment.
Nothing here imports the console, because workers take snapshots, too.

See docs/console.md.
"""
