"""What came of it: a table for each scenario in Markdown, all of it in JSON."""

import os
import platform
import re
import statistics
import subprocess

from lab import A, B

PACKAGES = ("tar", "netcat-openbsd", "mbuffer", "socat", "rsync", "mptcpize", "iperf3", "iproute2")
MEMORY_MAX = (64 + 256) << 20
"""A side's peak: 64 MiB beside the largest window it takes by itself."""


def machine(program, mtu):
    with open("/proc/cpuinfo") as f:
        models = re.findall(r"model name\s*: (.*)", f.read())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "cpu": f"{os.cpu_count()} x {models[0] if models else platform.machine()}",
        "memory": f"{memory:.0f} GB",
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", ""),
        "load": f"{os.getloadavg()[0]:.1f} at the start",
        "links": f"veth, MTU {mtu}, CUBIC; both hosts on this machine",
        "blast": f"{said(program, '--version')}, {said('git', 'describe', '--always', '--dirty')}, {said('rustc', '--version')}",
        "peers": ", ".join(said("dpkg-query", "-W", "-f", "${Package} ${Version}", package) or f"no {package}"
                           for package in PACKAGES),
    }


def said(*command):
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    except OSError:
        return ""


def median(values):
    return statistics.median(values)


def ratio(mine, theirs, value):
    """The median over rounds of mine to theirs: both sides of a round ran under the same weather."""
    pairs = [(value(a), value(b)) for a, b in zip(mine, theirs) if not a.failed and not b.failed]
    return median([a / b for a, b in pairs if b]) if any(b for _, b in pairs) else None


def wall(run):
    return run.wall


def cpu(run):
    return run.cpu[A] + run.cpu[B]


class Result:
    """One scenario with all its runs."""

    def __init__(self, scenario, job, limit):
        self.scenario, self.limit = scenario, limit
        self.files, self.bytes = job.made.files, job.made.bytes
        self.links, self.iperf, self.mtu = job.lab.links, job.lab.iperf, job.lab.mtu
        self.rounds, self.commands, self.left_out = {}, {}, {}

    def good(self, name):
        return [run for run in self.rounds.get(name, []) if not run.failed]

    def ratio(self, name, value, to="blast"):
        return ratio(self.rounds.get(to, []), self.rounds.get(name, []), value)

    def failed(self):
        return any(run.failed for runs in self.rounds.values() for run in runs)

    def markdown(self):
        s = self.scenario
        yield f"### {s.name}"
        yield ""
        about = f"{s.content.what}: {self.files:,} file{'s' * (self.files != 1)}, {self.bytes / 1e6:,.1f} MB; links: {self.links.what()}"
        yield about + "."
        if self.limit:
            yield f"Physical limit {self.limit:.2f} s."
        yield f"iperf3 on all links at once: {self.iperf / 1e9:.2f} Gbit/s, so {self.bytes * 8 / self.iperf:.2f} s."
        yield ""
        many = self.files >= 1000
        speed = "files/s" if many else "MB/s"
        limit = " of the limit |" if self.limit else ""
        yield (f"| | wall s (min to max) |{limit} {speed} | CPU s (send + recv) | peak MiB (send, recv) "
               "| blast's wall, CPU to it | MB on each link |")
        yield "|---" * (8 if self.limit else 7) + "|"
        for name in self.rounds:
            yield self.row(name, many)
        for name, why in self.left_out.items():
            yield f"| {name} | left out: {why} |" + " |" * (6 if self.limit else 5)
        yield ""
        for name, runs in self.rounds.items():
            for i, run in enumerate(runs, 1):
                if run.failed:
                    yield f"- FAILED: {name}, run {i}: {run.failed}"
        for text, value, met in self.verdicts():
            yield f"- {text}: {value} — {'met' if met else 'MISSED'}"
        yield ""

    def row(self, name, many):
        runs, good = self.rounds[name], self.good(name)
        label = name if name != "blast" else "**blast**"
        if len(good) < len(runs):
            label += f" FAILED {len(runs) - len(good)} of {len(runs)}"
        if not good:
            return f"| {label} |" + " |" * (7 if self.limit else 6)
        walls = [run.wall for run in good]
        cells = [f"{median(walls):.2f} ({min(walls):.2f} to {max(walls):.2f})"]
        if median(walls) < 0.5:
            cells = [f"{median(walls):.3f} ({min(walls):.3f} to {max(walls):.3f})"]
        if self.limit:
            cells.append(f"{median(walls) / self.limit:.3f}")
        amount = self.files if many else self.bytes / 1e6
        cells.append(f"{amount / median(walls):,.{0 if amount > 10 * median(walls) else 2}f}")
        cells.append(" + ".join(f"{median([run.cpu[host] for run in good]):.2f}" for host in (A, B)))
        cells.append(", ".join(f"{median([run.peak[host] for run in good]) / (1 << 20):.0f}" for host in (A, B)))
        ratios = [self.ratio(name, value) for value in (wall, cpu)]
        cells.append("" if name == "blast" else ", ".join("?" if r is None else f"{r:.2f}" for r in ratios))
        cells.append(", ".join(f"{median(link) / 1e6:,.1f}" for link in zip(*(run.links for run in good))))
        return f"| {label} | " + " | ".join(cells) + " |"

    def verdicts(self):
        """(what is asked, what was seen, whether that is enough) for each bound that can be judged."""
        good = self.good("blast")
        if not good:
            return
        took = median([run.wall for run in good])
        for kind, *asked in self.scenario.bounds:
            if kind in ("wall", "cpu"):
                name, most = asked
                seen = self.ratio(name, wall if kind == "wall" else cpu)
                if seen is not None:
                    yield f"{kind} at most {most:.3g} of {name}'s", f"{seen:.3f}", seen <= most
            elif kind == "limit" and self.limit and self.bytes >= 1.99e9:
                factor, plus = asked
                most = factor * self.limit + plus
                yield f"wall at most {factor} of the limit + {plus} s = {most:.2f} s", f"{took:.2f} s", took <= most
            elif kind == "files":
                (least,) = asked
                yield f"at least {least:,} files/s", f"{self.files / took:,.0f}", self.files / took >= least
            elif kind == "rate":
                (least,) = asked
                rate = self.bytes / 1e6 / took
                yield f"at least {least} MB/s", f"{rate:.1f}", rate >= least
            elif kind == "seconds":
                (most,) = asked
                yield f"wall at most {most} s", f"{took:.3f} s", took <= most
        peak = max(run.peak[host] for run in good for host in (A, B))
        yield f"peak of each side at most {MEMORY_MAX >> 20} MiB", f"{peak / (1 << 20):.0f} MiB", peak <= MEMORY_MAX

    def json(self):
        return {
            "scenario": self.scenario.name, "files": self.files, "bytes": self.bytes, "rates": self.links.rates,
            "loss": self.links.loss, "falls": self.links.falls, "mtu": self.mtu, "limit_s": self.limit, "iperf_bits_per_s": self.iperf,
            "commands": self.commands, "left_out": self.left_out,
            "bounds": [{"asked": text, "seen": value, "met": met} for text, value, met in self.verdicts()],
            "peers": {name: {
                "median_wall_s": median([r.wall for r in self.good(name)]) if self.good(name) else None,
                "median_cpu_s": median([cpu(r) for r in self.good(name)]) if self.good(name) else None,
                "blast_wall_ratio": self.ratio(name, wall), "blast_cpu_ratio": self.ratio(name, cpu),
                "runs": [{"wall_s": r.wall, "cpu_send_s": r.cpu.get(A), "cpu_recv_s": r.cpu.get(B),
                          "peak_send_bytes": r.peak.get(A), "peak_recv_bytes": r.peak.get(B), "link_bytes": r.links,
                          "failed": r.failed} for r in runs],
            } for name, runs in self.rounds.items()},
        }
