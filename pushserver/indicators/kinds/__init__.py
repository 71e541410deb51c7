"""The indicators of the server itself, each kind with its facts and the decision about them."""
