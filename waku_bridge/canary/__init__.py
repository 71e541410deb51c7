"""The canary of Waku: a client of our own that registers, asks, notifies itself and unregisters every minute.

links.py        the chain, link by link        diagnosis.py    what it means when one breaks (pure)
line.py         its way to nodes and stores    traces.py       what it leaves in the tables, and removing it

See docs/canary.md.
"""

from waku_bridge.canary.links import WakuCanary

canary = WakuCanary()
__all__ = ["canary"]
