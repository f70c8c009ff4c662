"""Delay on a link, where the kernel has no netem: relay.py PORT PORT SECONDS.

The two ports are interfaces of the namespace this runs in, each the far end of a host's cable. What comes in at one goes
out at the other after that time. The rate, the queue and losses stay with the hosts' interfaces. Packets come and go as
the kernel has them, segments not yet cut and checksums not yet made (PACKET_VNET_HDR), or this language would be too
slow: one read and one write move up to 64 KiB. It sleeps until something comes or is due, and ends with either port.
"""

import collections
import os
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ETH_P_ALL = 3
PACKET_MAX = 1 << 17
"""Bytes of a packet with its headers; more than the kernel makes."""
QUEUE = 256 << 20
"""Bytes that may wait for this program; a link of 10 Gbit/s brings that in 0.2 s."""
TURN = 64
"""Packets moved in one direction before the other has its turn."""


class Port:
    def __init__(self, name):
        self.name = name
        # no protocol yet, or packets of other interfaces would come before it is bound
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.socket.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        for option in (33, 32):  # SO_RCVBUFFORCE, SO_SNDBUFFORCE
            self.socket.setsockopt(socket.SOL_SOCKET, option, QUEUE)
        self.socket.bind((name, ETH_P_ALL))
        self.socket.setblocking(False)
        self.waiting = collections.deque()
        """(when it is due, the packet), for the other port."""

    def take(self, delay):
        """Queue what has come."""
        for _ in range(TURN):
            try:
                packet = self.socket.recv(PACKET_MAX)
            except BlockingIOError:
                return
            except OSError:
                # The port is down, or gone for good.
                if not os.path.exists(f"/proc/sys/net/ipv4/conf/{self.name}"):
                    sys.exit()
                return
            self.waiting.append((time.monotonic() + delay, packet))

    def pass_on(self, other):
        """Send what is due."""
        now = time.monotonic()
        for _ in range(TURN):
            if not self.waiting or self.waiting[0][0] > now:
                return
            try:
                other.socket.send(self.waiting.popleft()[1])
            except OSError:
                pass  # lost, as on a cable that was pulled


def main():
    names, delay = sys.argv[1:3], float(sys.argv[3])
    os.nice(-10)
    ports = a, b = [Port(name) for name in names]
    # Whoever started this waits for the line.
    print("relay: ready", flush=True)
    os.close(1)
    sockets = [port.socket for port in ports]
    while True:
        due = min((port.waiting[0][0] for port in ports if port.waiting), default=None)
        patience = None if due is None else max(0.0, due - time.monotonic())
        come, _, _ = select.select(sockets, [], [], patience)
        for port, other in ((a, b), (b, a)):
            if port.socket in come:
                port.take(delay)
            port.pass_on(other)


main()
