"""The dashboard, landing page of the console: which link of the chain works, how fast messages go, and what to do
first.

`pushserver.indicators` judges this; `figures` draws the last hour.
"""
