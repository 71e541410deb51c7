"""Rules of the bridge: decisions about pushes and commands, limits, and the content of pushes.

See docs/xmpp.md.
"""
