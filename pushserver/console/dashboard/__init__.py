"""The dashboard, landing page of the console: which link of the chain works, how fast messages go, and what to do
first.

`pushserver.state` collects this; `figures` draws the last hour; `pages` knows where each thing is looked at or put
right.
"""
