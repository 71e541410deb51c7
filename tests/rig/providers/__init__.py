"""Apple and Google as they speak their protocols to the byte, so that tests drive the real gorush offline.

They are one process with one port on loopback, which is the HTTP proxy of gorush. `CONNECT api.push.apple.com:443` is
answered with 200 and TLS as that host, under a certificate of a test authority. The development gorush's own table
decides the fate of a push, so that both suites share their cases.
"""
