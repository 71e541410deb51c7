"""Runner of a command without a network but loopback, if the system allows that: `python tests/interop/offline.py
COMMAND...`.

A peer that bypassed the fakes would reach the real Apple and Google. Without a network namespace the command runs
anyway: its peers have no addresses but those of the fakes' proxy.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1
INTERFACE_NAME_BYTES = 16


def leave_network() -> bool:
    """Move this process into a network of its own, with only loopback. Return whether that succeeded."""
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform != "linux" or libc.unshare(CLONE_NEWNET) != 0:
        return False
    request = struct.pack(f"{INTERFACE_NAME_BYTES}sH14x", b"lo", IFF_UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)
    return True


if __name__ == "__main__":
    print("network: loopback only" if leave_network() else "network: as it is (not root)", flush=True)  # noqa: T201
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606
