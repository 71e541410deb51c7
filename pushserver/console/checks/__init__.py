"""Config checks of the servers behind gateways and bridges, and their results for `/readyz` and the console.

`nodes` and `gorush` have the rules about one kind of server each, and read what it says about itself.
"""
