"""The canary of Waku: a client of our own that registers, queries, notifies itself and unregisters every minute.

links.py        the chain, link by link        diagnosis.py    the cause when a link breaks
line.py         its nodes and stores           traces.py       its rows in the tables, and their removal

See docs/canary.md.
"""

from pushserver.console.canary.waku.links import WakuCanary

canary = WakuCanary()
__all__ = ["canary"]
