"""Rules of the bridge: decisions about pushes and commands, limits, and the content of pushes. Pure.

See docs/xmpp.md.
"""
