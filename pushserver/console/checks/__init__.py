"""Config checks of the servers behind gateways and bridges, and their results for `/readyz` and the console."""
