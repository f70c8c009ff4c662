"""The two hosts and their links, made by scripts/netlab; what the links could carry, and what they did."""

import json
import os
import subprocess
import time

NETLAB = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "netlab")
A, B = "a", "b"


class Links:
    def __init__(self, name, *rates, loss=None, falls=None):
        """`falls`: (link, rate), what that link has from half-way on."""
        self.name, self.rates, self.loss, self.falls = name, rates, loss, falls

    def bits(self, rates=None):
        """Each link's rate in bits a second; None where there is no limit."""
        units = {"gbit": 1e9, "mbit": 1e6}
        plain = [r.split("/")[0] for r in rates or self.rates]
        return [None if r == "max" else float(r[:-4]) * units[r[-4:]] for r in plain]

    def rates_later(self):
        """The rates from half-way on."""
        rates = list(self.rates)
        if self.falls:
            rates[self.falls[0] - 1] = self.falls[1]
        return rates

    def what(self):
        """In words."""
        what = ", ".join(self.rates)
        if self.loss:
            what += ", {1} per mille lost on link {0}".format(*self.loss)
        if self.falls:
            what += ", link {0} falls to {1} half-way".format(*self.falls)
        return what

    def limited(self):
        return None not in self.bits()

    def goodput(self, mtu, rates=None):
        """Bytes of payload a second that all links together can carry: TCP over IPv4 with timestamps, Ethernet's header
        as tc counts it."""
        return sum(self.bits(rates)) / 8 * (mtu - 52) / (mtu + 14) if self.limited() else None

    def half_way(self, size, mtu):
        """Seconds in which the links can carry half of so many bytes, as they are at first."""
        return size / 2 / self.goodput(mtu)

    def limit(self, size, mtu):
        """Seconds in which the links can carry so many bytes, if they have a limit."""
        if not self.limited():
            return None
        return self.half_way(size, mtu) + size / 2 / self.goodput(mtu, self.rates_later())


LINKS = {links.name: links for links in (
    Links("4x1g", "1gbit", "1gbit", "1gbit", "1gbit"),
    Links("1g+250m+100m", "1gbit", "250mbit", "100mbit"),
    Links("1g+100m", "1gbit", "100mbit"),
    Links("2x1g", "1gbit", "1gbit"),
    Links("2x1g-loss", "1gbit", "1gbit", loss=(2, 1)),
    Links("1g+10m", "1gbit", "10mbit"),
    Links("1g+100m-far", "1gbit", "100mbit/50ms"),
    Links("500m-near+100m-far", "500mbit/1ms", "100mbit/100ms"),
    Links("500m+1g-falls", "500mbit", "1gbit", falls=(2, "10mbit")),
    Links("1g-far", "1gbit/50ms"),
    Links("1g", "1gbit"),
    Links("100m", "100mbit"),
    Links("max", "max"),
)}


def netlab(*arguments):
    return subprocess.run([NETLAB, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout


class Lab:
    """One set of links. The hosts are the namespaces NAME-a (10.77.LINK.1) and NAME-b (10.77.LINK.2)."""

    def __init__(self, links, mtu):
        self.links, self.mtu, self.name = links, mtu, f"bench{os.getpid()}"
        self.port, self.iperf, self.mptcp = 20000, None, "the links are not up"

    def up(self):
        netlab("up", "-n", self.name, "--mtu", self.mtu, *self.links.rates)
        if self.links.loss:
            netlab("loss", "-n", self.name, *self.links.loss)
        self.mptcp = self.set_up_mptcp()

    def down(self):
        netlab("down", "-n", self.name)

    def set_rates(self, rates):
        """Where they change at all."""
        if self.links.falls:
            link = self.links.falls[0]
            netlab("rate", "-n", self.name, link, rates[link - 1])

    def on(self, host, command):
        """The command as run on that host."""
        return ["ip", "netns", "exec", f"{self.name}-{host}", *command]

    def next_port(self):
        """A port that no earlier run has used: nothing waits for one to become free."""
        self.port += 1
        return self.port

    def address(self, link=1):
        return f"10.77.{link}.2"

    def sent(self):
        """Bytes that host a has sent on each link."""
        return [int(line.split()[1]) for line in netlab("bytes", "-n", self.name).splitlines()]

    def set_up_mptcp(self):
        """Let TCP spread over all links where a program asks for MPTCP: b announces the addresses of the other links.
        Says what is wrong if the kernel cannot."""
        if len(self.links.rates) == 1:
            return "there is one link only"
        try:
            for host in (A, B):
                self.run(host, "sysctl", "-qw", "net.mptcp.enabled=1")
                # The most the kernel allows.
                self.run(host, "ip", "mptcp", "limits", "set", "subflow", "8", "add_addr_accepted", "8")
            for link in range(2, len(self.links.rates) + 1):
                self.run(B, "ip", "mptcp", "endpoint", "add", self.address(link), "dev", f"l{link}", "signal")
        except subprocess.CalledProcessError as error:
            return f"the kernel has no MPTCP ({error.stderr.strip() or error.cmd})"
        return None

    def run(self, host, *command):
        return subprocess.run(self.on(host, command), check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True).stdout

    def measure_iperf(self, start, seconds):
        """Bits a second that iperf3 gets through all links at once, one connection on each."""
        ports = [self.next_port() for _ in self.links.rates]
        for port in ports:
            server = start(self.on(B, ["iperf3", "-s", "-1", "-p", str(port)]), subprocess.DEVNULL)
            wait_for_listener(self, server, port)
        clients = [start(self.on(A, ["iperf3", "-c", self.address(link), "-p", str(port), "-t", str(seconds), "-J"]),
                         subprocess.PIPE) for link, port in enumerate(ports, 1)]
        results = [json.loads(client.communicate()[0]) for client in clients]
        self.iperf = sum(result["end"]["sum_received"]["bits_per_second"] for result in results)
        return self.iperf

    def listens(self, process, port):
        """Whether a process on host b listens on that TCP port."""
        try:
            here = os.stat(f"/proc/{process.pid}/ns/net").st_ino
            if here != os.stat(f"/run/netns/{self.name}-{B}").st_ino:
                return False
            wanted = f":{port:04X}"
            for family in ("tcp", "tcp6"):
                with open(f"/proc/{process.pid}/net/{family}") as f:
                    # Local address in field 1, state in field 3; 0A is LISTEN.
                    if any(row[1].endswith(wanted) and row[3] == "0A" for row in map(str.split, f)):
                        return True
        except OSError:
            pass
        return False


def wait_for_listener(lab, process, port, seconds=20):
    """Poll: every peer's receiver is started first, and few senders try again."""
    deadline = time.monotonic() + seconds
    while not lab.listens(process, port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise TimeoutError(f"the receiver does not listen on port {port}")
        time.sleep(0.001)
