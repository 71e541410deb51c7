"""The dashboard, landing page of the console: state of each link of the chain, first steps, and the last hour.

`pushserver.console.health` judges this; `figures` draws the last hour.
"""
