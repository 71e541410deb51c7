"""Indicators of the server itself: each kind with its facts and its judgement."""
