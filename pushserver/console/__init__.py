"""The operator's plane: what shows or operates the server. It imports the path, and nothing below imports it.

`toolkit` has the building blocks of pages. `health` judges facts, keeps incidents and alerts; `canary` and `checks` try
the chain and the servers around. These three run in workers, too. `pages` combines all apps; each other package shows
and operates one app.

See docs/console.md.
"""
