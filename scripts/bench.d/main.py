"""The scenarios, and the runs one after the other. scripts/bench is how to call it."""

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from content import CONTENTS, FULL, Made
from lab import LINKS, Lab
from measure import Processes, Runner
from peers import Job, all_peers, commands, compress_off
from report import Result, machine

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MEMORY = 8_000_000_000
"""Bytes of memory at most for sources, pieces and destinations together."""
QUICK_SIZE, QUICK_RUNS = 400_000_000, 3
IPERF_SECONDS = 2

TREE = ("tar-nc", "tar-mbuffer", "rsync")
SPREAD = ("mptcp", "split")
STREAM = ("nc", "socat", "mbuffer")
FASTER = (("wall", "mptcp", 1.0), ("wall", "split", 1.0), ("limit", 1.015, 0.1))
HARMLESS = ("wall", "blast-off", 1.01)
SEALED, SEALED_UNLIMITED = ("wall", "blast-plain", 1.01), ("wall", "blast-plain", 1 / 0.75)


@dataclass
class Scenario:
    links: object
    content: object
    peers: tuple
    bounds: tuple
    part: float
    """Of the size asked for: less on links that would take all day."""
    is_quick: bool

    @property
    def name(self):
        return f"{self.links.name}:{self.content.name}"


def scenario(name, peers, bounds=(), part=1.0, quick=False):
    links, content = name.split(":")
    return Scenario(LINKS[links], CONTENTS[content], ("blast", *peers), bounds, part, quick)


# Contents that are the same follow each other, so that each is made once.
def scenarios(disk):
    small = ("wall", "tar-nc", 1.0 if disk else 0.75)
    return (
        scenario("4x1g:big", SPREAD + TREE[:1] + TREE[2:], FASTER, quick=True),
        scenario("1g+250m+100m:big", SPREAD, FASTER),
        scenario("1g+100m:big", SPREAD, FASTER, quick=True),
        scenario("2x1g:big", ("blast-plain", "mptcp"), (SEALED, ("limit", 1.015, 0.1))),
        scenario("2x1g-loss:big", SPREAD, FASTER),
        scenario("1g+10m:big", ("mptcp", "tar-nc"), (("limit", 1.015, 0.1), ("wall", "tar-nc", 1.0))),
        scenario("1g+100m-far:big", ("mptcp",), (("limit", 1.015, 0.3),)),
        scenario("500m-near+100m-far:big", ("mptcp",), (("limit", 1.015, 0.6),)),
        scenario("500m+1g-falls:big", ("mptcp",), (("limit", 1.05, 0.0),)),
        scenario("1g-far:big", ("tar-nc",), (("wall", "tar-nc", 0.5),)),
        scenario("1g:big", ("blast-off", *TREE), (("limit", 1.015, 0.1), HARMLESS)),
        scenario("max:big", ("blast-plain", "blast-off", *TREE),
                 (("wall", "tar-nc", 0.65), ("cpu", "tar-nc", 0.75), HARMLESS, SEALED_UNLIMITED), quick=True),
        scenario("max:stream", ("blast-plain", *STREAM), (("wall", "nc", 0.75), SEALED_UNLIMITED), quick=True),
        scenario("max:turns", ("nc",), (("rate", 90),), part=0.5),
        scenario("100m:big", ("blast-off", "tar-nc"), (HARMLESS,), part=0.05),
        scenario("max:small", ("blast-plain", *TREE), (small, SEALED_UNLIMITED), quick=True),
        scenario("4x1g:small", ("mptcp", "tar-nc"), (("wall", "mptcp", 1.0),)),
        scenario("max:tiny", TREE, (("files", 20_000 if disk else 40_000),)),
        scenario("max:source", TREE),
        scenario("max:text", ("blast-off", "tar-nc"), (HARMLESS,)),
        scenario("100m:text", ("blast-off", "tar-nc"), (("wall", "blast-off", 1 / 3),), part=0.1),
        scenario("max:one", ("tar-nc", "rsync"), (("seconds", 0.15),), quick=True),
    )


def tell(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def size(text):
    units = {"k": 10**3, "M": 10**6, "G": 10**9}
    try:
        number = int(float(text[:-1]) * units[text[-1]]) if text[-1:] in units else int(text)
    except ValueError:
        number = 0
    if number < 1_000_000:
        raise argparse.ArgumentTypeError(f"sizes are like 2G or 500M, a million bytes at least: not {text}")
    return number


def variant(text):
    name, equals, options = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError("a variant is NAME=OPTIONS")
    return name, options.split()


def arguments():
    parser = argparse.ArgumentParser(prog="bench", description="See the head of scripts/bench.", allow_abbrev=False)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--scenario", action="append", metavar="NAME")
    parser.add_argument("--peer", action="append", metavar="NAME")
    parser.add_argument("--runs", type=int, metavar="N")
    parser.add_argument("--size", type=size, metavar="SIZE")
    parser.add_argument("--mtu", type=int, default=1500, metavar="BYTES")
    parser.add_argument("--disk", metavar="DIR")
    parser.add_argument("--against", metavar="PROGRAM", type=os.path.abspath)
    parser.add_argument("--variant", action="append", type=variant, default=[], metavar="NAME=OPTIONS")
    parser.add_argument("--json", metavar="FILE")
    asked = parser.parse_args()
    asked.runs = asked.runs or (QUICK_RUNS if asked.quick else 5)
    if asked.size is None:
        from_outside = os.environ.get("BENCH_SIZE")
        asked.size = size(from_outside) if from_outside else QUICK_SIZE if asked.quick else FULL
    extra = ["blast-other"] * bool(asked.against) + [name for name, _ in asked.variant]
    asked.scenarios = []
    for s in scenarios(asked.disk):
        named = asked.scenario and any(fnmatch.fnmatchcase(s.name, pattern) for pattern in asked.scenario)
        if named or (not asked.scenario and (s.is_quick or not asked.quick)):
            peers = (*s.peers[:1], *extra, *s.peers[1:])
            s.peers = tuple(p for p in peers if not asked.peer or p in asked.peer)
            asked.scenarios.append(s)
    if not any(s.peers for s in asked.scenarios):
        parser.error("no such scenario or peer; --list names them")
    return asked


def show_list(asked):
    """Q marks what --quick runs."""
    for s in asked.scenarios:
        print(f"{'Q' if s.is_quick else ' '} {s.name:22} {s.content.what}; {s.links.what()}")
        print(f"{'':24} {', '.join(s.peers)}")
    print()
    for peer in all_peers("blast", ["--compress", "off"], asked.against, asked.variant).values():
        print(f"  {peer.name:18} {peer.what}")


class Place:
    """Where it all happens: a tmpfs of our own, and the directory for destinations."""

    def __init__(self, disk):
        parent = os.environ.get("BENCH_DIR") or tempfile.gettempdir()
        self.root = tempfile.mkdtemp(prefix="blast-bench.", dir=parent)
        self.disk = tempfile.mkdtemp(prefix="blast-bench.", dir=disk) if disk else None
        self.mounted = False

    def mount(self):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={MEMORY + 500_000_000},nr_inodes=2m,mode=700", "blast-bench",
                        self.root], check=True)
        self.mounted = True
        for name in ("source", "scratch"):
            os.mkdir(os.path.join(self.root, name))

    def path(self, *names):
        return os.path.join(self.root, *names)

    def fresh_dest(self):
        """An empty directory."""
        dest = os.path.join(self.disk or self.root, "dest")
        # rm is many times faster than this language.
        subprocess.run(["rm", "-rf", dest], check=True)
        os.mkdir(dest)
        return dest

    def remove(self):
        if self.disk:
            subprocess.run(["rm", "-rf", self.disk])
        if self.mounted:
            subprocess.run(["umount", "-l", self.root])
        os.rmdir(self.root)


def check_room(asked):
    """All of it must fit in memory, and leave some."""
    scale = asked.size / FULL
    most = 0
    for s in asked.scenarios:
        source = {"small": 3.3e9, "tiny": 0.9e9, "text": 1e9}.get(s.content.name, FULL) * scale * s.part
        copies = 1 + ("split" in s.peers) + (asked.disk is None)
        most = max(most, source * copies)
    with open("/proc/meminfo") as f:
        available = next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable"))
    if most > MEMORY or most + 1e9 > available:
        sys.exit(f"bench: this takes {most / 1e9:.1f} GB of memory; {MEMORY / 1e9:.0f} are allowed and "
                 f"{available / 1e9:.1f} available: choose a smaller --size")


def measure(asked, s, peers, place, made, processes):
    """All runs of one scenario, the peers taking turns."""
    made.make(s.content, asked.size / FULL * s.part)
    lab = Lab(s.links, asked.mtu)
    try:
        lab.up()
        job = Job(lab, s.content, made, place.fresh_dest(), place.path("scratch"))
        limit = s.links.limit(made.bytes, asked.mtu)
        lab.measure_iperf(lambda command, out: processes.start(command, out), IPERF_SECONDS)
        processes.end_all()
        if job.is_stream:
            job.dest = os.devnull
        result = Result(s, job, limit)
        runner = Runner(processes, place.path("scratch"), asked.disk is not None)
        slowest = max(made.bytes / (min(b or 1e9 for b in s.links.bits(s.links.rates_later())) / 8), made.files / 1000)
        fit = []
        for name in s.peers:
            why = peers[name].unfit(job)
            if why:
                result.left_out[name] = why
                continue
            fit.append(name)
            result.rounds[name] = []
            result.commands[name] = commands(job, peers[name])
        for number in range(1, asked.runs + 1):
            for name in fit:
                run = one_run(runner, job, peers[name], 30 + 4 * slowest, place, number)
                result.rounds[name].append(run)
                tell(f"{s.name} {number}/{asked.runs} {name}: {run.failed or f'{run.wall:.3f} s'}")
        return result
    finally:
        processes.end_all()
        lab.down()
        made.drop_pieces()


def one_run(runner, job, peer, seconds, place, number):
    if not job.is_stream:
        job.dest = place.fresh_dest()
        return runner.run(job, peer, seconds)
    # What goes to /dev/null cannot be compared: the first time, once more into a file, which is not timed.
    if number == 1:
        job.dest = os.path.join(place.fresh_dest(), "stream")
        checked = runner.run(job, peer, seconds)
        place.fresh_dest()
        job.dest = os.devnull
        if checked.failed:
            return checked
    return runner.run(job, peer, seconds)


def main():
    asked = arguments()
    if asked.list:
        show_list(asked)
        return 0
    check_room(asked)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("bench: interrupted"))
    program = os.path.abspath(os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release/blast"))
    peers = all_peers(program, compress_off(program), asked.against, asked.variant)
    about, results = machine(program, asked.mtu), []
    about["runs"] = f"{asked.runs} of each, alternating; size {asked.size:,}; destinations {'on ' + asked.disk if asked.disk else 'in memory'}"
    print("\n".join(f"- {key}: {value}" for key, value in about.items()), flush=True)
    processes, place = Processes(), Place(asked.disk)
    try:
        place.mount()
        made = Made(place.path("source"))
        for s in asked.scenarios:
            if not s.peers:
                continue
            results.append(measure(asked, s, peers, place, made, processes))
            print("\n" + "\n".join(results[-1].markdown()), flush=True)
    except KeyboardInterrupt:
        sys.exit("bench: interrupted")
    finally:
        processes.end_all()
        place.remove()
        if asked.json and results:
            with open(asked.json, "w") as f:
                json.dump({"machine": about, "arguments": sys.argv[1:], "results": [r.json() for r in results]}, f, indent=1)
    print_commands(results, peers)
    return 1 if any(result.failed() for result in results) else 0


def print_commands(results, peers):
    """Each peer's first commands; all of them are in the JSON."""
    print("### Commands (a sends, b receives)\n")
    seen = set()
    for result in results:
        for name, told in result.commands.items():
            content = result.scenario.content
            key = (name, content.name if content.is_stream else "")
            if key not in seen:
                seen.add(key)
                print(f"- {name} ({peers[name].what})")
                print("\n".join(f"    - `{line}`" for line in told))


if __name__ == "__main__":
    sys.exit(main())
