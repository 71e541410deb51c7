"""The dashboard, landing page of the console: which link of the chain holds, how fast it goes, and what to do first.

`collecting` reads what is the case, from the same functions as `/readyz`; `facts` says in which shape; `lights` decides
what it means, without I/O; `figures` draws the last hour; `pages` knows where each thing is looked at or put right.
"""
