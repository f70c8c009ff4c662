"""Who moves the content: blast, and what Debian's packages bring, each with its best flags. A peer turns a job into a plan:
what runs on which host."""

import os
import subprocess
import sys
from dataclasses import dataclass, field

from lab import A, B

TAR = ["tar", "--blocking-factor=128"]
# One write fills many segments; more memory does not help it.
MBUFFER = ["mbuffer", "-q", "-Q", "-s", "256k", "-m", "64M"]
SOCAT = ["socat", "-u", "-b", "1048576"]
NC = ["nc.openbsd", "-n"]


@dataclass
class Job:
    """What a peer is asked to move."""
    lab: object
    content: object
    made: object
    dest: str
    """An empty directory; for a stream, the file or device that standard output goes to."""
    scratch: str

    @property
    def is_stream(self):
        return self.content.is_stream


@dataclass
class Plan:
    """Pipelines (lists of commands) on b, then on a once every port is listened on."""
    recv: list
    send: list
    ports: list
    is_daemon: bool = False
    """The receiver does not end by itself."""
    check: str = "tree"
    """How the result is compared: tree, seconds (a tree but for the fractions of times), pieces, stream."""
    stdin: str = os.devnull
    stdout: str = os.devnull


@dataclass
class Peer:
    name: str
    what: str
    plan: callable
    unfit: callable = field(default=lambda job: None)
    """Why it cannot do a job, or None."""


def piped(job, recv, send, port, **more):
    """A plan for what only moves bytes: alone for a stream, between two tars for a tree."""
    if job.is_stream:
        return stream(job, recv, send, port, **more)
    pack, unpack = tar_pack(job.made.tree), tar_unpack(job.dest)
    # GNU tar's own format keeps whole seconds: its fastest, so what it is compared by.
    return Plan([[recv, unpack]], [[pack, send]], [port], check="seconds", **more)


def stream(job, recv, send, port, **more):
    """From a file to a file, or with who gives and takes by turns at its ends."""
    recv, send = [recv], [send]
    if job.content.name == "turns":
        turns = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "turns.py")]
        recv, send = [*recv, [*turns, "1"]], [[*turns, "0"], *send]
    return Plan([recv], [send], [port], check="stream", stdin=job.made.file, stdout=job.dest, **more)


def tar_pack(directory):
    return [*TAR, "-C", directory, "-c", "-f", "-", "."]


def tar_unpack(directory):
    return [*TAR, "-C", directory, "-x", "-p", "--numeric-owner", "-f", "-"]


def nc_recv(port):
    # On all addresses: MPTCP's other links are joined by theirs.
    return [*NC, "-d", "-l", str(port)]


def nc_send(job, port, link=1):
    # -N: the end of the input is the end of the connection.
    return [*NC, "-N", job.lab.address(link), str(port)]


def plan_nc(job):
    port = job.lab.next_port()
    return piped(job, nc_recv(port), nc_send(job, port), port)


def plan_mptcp(job):
    port = job.lab.next_port()
    wrap = ["mptcpize", "run"]
    return piped(job, wrap + nc_recv(port), wrap + nc_send(job, port), port)


def plan_socat(job):
    port = job.lab.next_port()
    recv = [*SOCAT, f"TCP4-LISTEN:{port},reuseaddr", "STDOUT"]
    return piped(job, recv, [*SOCAT, "STDIN", f"TCP4:{job.lab.address()}:{port}"], port)


def plan_mbuffer(job):
    port = job.lab.next_port()
    return piped(job, [*MBUFFER, "-4", "-I", str(port)], [*MBUFFER, "-4", "-O", f"{job.lab.address()}:{port}"], port)


def plan_split(job):
    lab = job.lab
    pieces = job.made.pieces(lab.links.bits())
    ports = [lab.next_port() for _ in pieces]
    recv = [[nc_recv(port), tar_unpack(job.dest)] for port in ports]
    send = [[[*TAR, "-C", piece, "-c", "-f", "-", *os.listdir(piece)], nc_send(job, port, link)]
            for link, (piece, port) in enumerate(zip(pieces, ports), 1)]
    return Plan(recv, send, ports, check="pieces")


def plan_rsync(job):
    port = job.lab.next_port()
    config = os.path.join(job.scratch, "rsyncd.conf")
    with open(config, "w") as f:
        f.write("use chroot = no\nuid = 0\ngid = 0\nreverse lookup = no\nmunge symlinks = no\nmax verbosity = 0\n"
                f"[dest]\npath = {job.dest}\nread only = no\n")
    recv = ["rsync", "--daemon", "--no-detach", "--config", config, "--port", str(port)]
    # Hard links cost it a table of all files, so only where there are some.
    archive = "-aH" if job.content.name == "source" else "-a"
    send = ["rsync", archive, "--whole-file", "--inplace", "--no-compress", "--numeric-ids", job.made.tree + "/",
            f"rsync://{job.lab.address()}:{port}/dest/"]
    return Plan([[recv]], [[send]], [port], is_daemon=True)


def blast(name, what, program, options=(), both=()):
    def plan(job):
        port = job.lab.next_port()
        recv = [program, "recv", "--quiet", *both, "--port", str(port), "-" if job.is_stream else job.dest]
        send = [program, "send", "--quiet", *both, *options, "-" if job.is_stream else job.made.tree,
                f"{job.lab.address()}:{port}"]
        if job.is_stream:
            return stream(job, recv, send, port)
        return Plan([[recv]], [[send]], [port])
    return Peer(name, what, plan)


def compress_off(program):
    """How this build spells it."""
    asked = subprocess.run([program, "send", "--compress", "off"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True).stdout
    return ["--compress", "0" if "'off'" in asked else "off"]


def needs_links(job):
    return "there is one link only" if len(job.lab.links.rates) == 1 else None


def split_unfit(job):
    return needs_links(job) or (None if job.content.name == "big" else "only the large file is split by hand")


OTHERS = (
    Peer("tar-nc", "tar in blocks of 64 KiB through nc, on the first link", plan_nc),
    Peer("split", "one tar and nc a link, the file cut by hand in proportion to the links' rates", plan_split, split_unfit),
    Peer("mptcp", "tar and nc under mptcpize, all links", plan_mptcp, lambda job: job.lab.mptcp),
    Peer("tar-mbuffer", "tar through mbuffer, on the first link", plan_mbuffer),
    Peer("rsync", "rsync to a daemon, whole files, in place, on the first link", plan_rsync),
    Peer("nc", "nc alone", plan_nc),
    Peer("socat", "socat with buffers of 1 MiB", plan_socat),
    Peer("mbuffer", "mbuffer alone", plan_mbuffer),
)


def all_peers(program, off, against=None, variants=()):
    """By name; blast first."""
    plain = ["--no-encrypt"]
    peers = [
        blast("blast", "blast", program),
        blast("blast-plain", "blast --no-encrypt", program, both=plain),
        blast("blast-off", "blast " + " ".join(off), program, off),
    ]
    if against:
        peers.append(blast("blast-other", f"another build of blast: {against}", against))
    for name, options in variants:
        peers.append(blast(name, f"blast send {' '.join(options)}", program, options))
    return {peer.name: peer for peer in (*peers, *OTHERS)}


def commands(job, peer):
    """A plan in words, for who wants to repeat it."""
    plan = peer.plan(job)
    told = []
    for host, pipelines in ((B, plan.recv), (A, plan.send)):
        for pipeline in pipelines:
            text = " | ".join(" ".join([os.path.basename(command[0]), *command[1:]]) for command in pipeline)
            for path, word in ((job.dest, "DEST"), (job.made.tree, "SRC"), (job.made.root, "."), (job.scratch, ".")):
                text = text.replace(path, word)
            if plan.check == "stream":
                text += " >/dev/null" if host == B else " <SRC/big"
            told.append(f"{host}: {text}")
    return told
