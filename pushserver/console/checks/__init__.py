"""Config checks of the servers behind gateways and bridges, and their results for `/readyz` and the console.

A module for each kind of server has the rules about it, and reads what such a server says about itself.
"""
