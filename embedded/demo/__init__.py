"""The demonstration: people with phones (`people`), users of XMPP and their servers (`xmpp`), and stored `reports`.

See README.md, "Try it".
"""
