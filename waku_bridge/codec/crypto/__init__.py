"""Encryption and signatures of the protocol."""
