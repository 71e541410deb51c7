"""The health indicators of the server, one list for all who ask how it is.

`asking` asks the servers around us, within seconds, and reads what the cache holds; `stored` reads what the database
knows. `server`, `delivery`, `results` and `reports` judge these facts without I/O, as gateways and bridges judge theirs
(`kit.operations`); `judging` puts them into one list; `incidents` keeps since when; `snapshot` is all of it at one
moment. Nothing in here imports the console, because workers take snapshots, too.

See docs/console.md.
"""
