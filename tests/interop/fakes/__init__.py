"""Stand-ins for Apple and Google that speak their protocols to the byte, so that the real gorush can be driven offline.

One process, one port on loopback. It is the HTTP proxy of gorush: `CONNECT api.push.apple.com:443` is answered with 200
and TLS as that host, under a certificate of a test authority (`certificates.py`). Inside are APNs (`apns.py`) and FCM
v1 (`fcm.py`), over HTTP/2 or 1.1. Without CONNECT the port answers Google's token requests and tells what it received
(`control.py`). What becomes of a push is decided by the development gorush's own table, so that both suites share their
cases; the record of pushes (`ledger.py`) is the ground truth for "sent once".
"""
