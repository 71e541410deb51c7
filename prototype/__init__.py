"""Prototype of docs/decisions/0098: not part of the server, and removed by the commit after this one."""
