"""`python tests/interop/offline.py COMMAND...`: run it without a network but loopback, if the system allows that.

A peer that found a way around the fakes would reach the real Apple and Google. Where a namespace of our own is not to
be had, the command runs plainly: its peers know no addresses but those of the fakes' proxy.
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
    """Whether this process has a network of its own now, with loopback up and nothing else."""
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
