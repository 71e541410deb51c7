"""Fakes of Apple and Google that speak their protocols to the byte, so that tests drive the real gorush offline.

They are one process with one port on loopback, which is the HTTP proxy of gorush. `CONNECT api.push.apple.com:443` is
answered with 200 and TLS as that host, under a certificate of a test authority (`certificates.py`). Inside are APNs
(`apns.py`) and FCM v1 (`fcm.py`), over HTTP/2 or 1.1. Without CONNECT the port answers Google's token requests and
serves the record of pushes (`control.py`). The development gorush's own table decides the fate of a push, so that both
suites share their cases. The record of pushes (`ledger.py`) is the ground truth for "sent once".
"""
