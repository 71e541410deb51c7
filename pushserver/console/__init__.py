"""The parts of the console that know all apps: which rows belong together, and how a chat key is looked up.

See docs/console.md.
"""
