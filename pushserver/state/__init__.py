"""The state of the server: which link of the chain works, and since when one does not. The dashboard shows it.

`collecting` reads the facts, from the same functions as `/readyz`; `facts` defines their shape; `lights` decides what
they mean, without I/O; `memory` keeps since when. Nothing in here imports the console, because workers collect the
state, too.
"""
