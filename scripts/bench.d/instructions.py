"""Instructions that the hot stages execute, as a gate that does not depend on the machine's mood.

The stages are the tests of tests/instructions.rs; callgrind counts inside their function `measured`. The counts are kept
apart by who executes, because not all of them mean the same everywhere:

  own      this crate and what was inlined into it
  libc     mostly memcpy, memset and the allocator
  blake3, zstd

own depends on the compiler alone. The others choose their code for the CPU while they run (callgrind offers the program
AVX2 at most, and only if the machine has it) or were compiled by the C compiler at hand, so they are compared only where
the file was written under the same conditions; the first line of the file says which. Kernel time is not counted.
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
KEPT = os.path.join(HERE, "instructions.tsv")
GROUPS = ("own", "libc", "blake3", "zstd")
TOLERANCE = 0.05
# Below this a group is noise beside its stage.
SHARE_MIN = 0.01


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def conditions():
    """What the counts depend on: the compiler for all of them, the rest for foreign code."""
    with open("/proc/cpuinfo") as f:
        flags = next((line for line in f if line.startswith("flags")), "").split()
    simd = next((s for s in ("avx2", "avx", "sse4_1") if s in flags), platform.machine())
    rustc = output("rustc", "--version").split()[1]
    gcc = output("cc", "-dumpfullversion").strip()
    return {"rustc": rustc, "cpu": simd, "libc": platform.libc_ver()[1], "cc": gcc,
            "valgrind": output("valgrind", "--version").strip().removeprefix("valgrind-")}


def build():
    """The test binary."""
    command = ["cargo", "test", "--release", "--test", "blast", "--no-run", "--message-format=json"]
    built = [json.loads(line) for line in output(*command).splitlines() if line.startswith("{")]
    return next(b["executable"] for b in built if b.get("executable") and b["target"]["kind"] == ["test"])


def group(function, file, obj):
    for name in ("blake3", "zstd"):
        if name in function or f"/{name}" in file:
            return name
    return "libc" if re.search(r"/(libc|libm|ld-linux)[^/]*\.so", obj) else "own"


def count(binary, stage):
    """Self cost of each group within `measured`."""
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "callgrind")
        command = ["valgrind", "--tool=callgrind", "--toggle-collect=blast::instructions::measured*",
                   f"--callgrind-out-file={out}", binary, f"instructions::{stage}", "--exact", "--test-threads=1"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0 or "1 passed" not in done.stdout:
            sys.exit(f"bench: {stage} failed under callgrind:\n{done.stdout}")
        with open(out) as f:
            return tally(f)


def tally(lines):
    """Read callgrind's format: names are given once, then by number; the line after `calls=` is of the callee."""
    names, now, counts, callee = {}, {"fn": "", "file": "", "ob": ""}, dict.fromkeys(GROUPS, 0), False
    for line in lines:
        named = re.match(r"(c?)(fn|fl|fi|fe|ob|file|obj?)=\((\d+)\)(?: (.*))?", line)
        if named:
            called, kind, number, name = named.groups()
            kind = {"fl": "file", "fi": "file", "fe": "file", "obj": "ob"}.get(kind, kind)
            if name is not None:
                names[kind, number] = name.strip()
            if not called:
                now[kind] = names.get((kind, number), "")
        elif line.startswith("calls="):
            callee = True
        elif re.match(r"[+*\d-]", line):
            if not callee:
                counts[group(now["fn"], now["file"], now["ob"])] += int(line.split()[-1])
            callee = False
    return counts


def read_kept():
    if not os.path.exists(KEPT):
        return {}, {}
    with open(KEPT) as f:
        first, _, *rows = f.read().splitlines()
    made = dict(word.split("=") for word in first.lstrip("# ").split())
    return made, {row.split("\t")[0]: dict(zip(GROUPS, map(int, row.split("\t")[1:]))) for row in rows}


def write_kept(made, counts):
    with open(KEPT, "w") as f:
        f.write("# " + " ".join(f"{k}={v}" for k, v in made.items()) + "\n")
        f.write("stage\t" + "\t".join(GROUPS) + "\n")
        for stage in sorted(counts):
            f.write(stage + "".join(f"\t{counts[stage][g]}" for g in GROUPS) + "\n")


def main():
    arguments = [a for a in sys.argv[1:] if a != "--instructions"]
    bless = "--bless" in arguments
    wanted = [a for a in arguments if not a.startswith("-")]
    unknown = [a for a in arguments if a.startswith("-") and a != "--bless"]
    if unknown:
        sys.exit(f"bench: {unknown[0]} does not go with --instructions")
    now, (made, kept) = conditions(), read_kept()
    binary = build()
    listed = output(binary, "--list", "--format=terse").splitlines()
    stages = [line.split("::")[1].split(":")[0] for line in listed if line.startswith("instructions::")]
    stages = [s for s in stages if not wanted or s in wanted]
    if not stages:
        sys.exit("bench: no such stage")
    foreign = {k: v for k, v in made.items() if k != "rustc"} == {k: v for k, v in now.items() if k != "rustc"}
    print("| stage | who | instructions | kept | change |\n|---|---|---|---|---|")
    worse, better, counts = [], [], dict(kept) if wanted else {}
    for stage in stages:
        counts[stage] = count(binary, stage)
        total = sum(counts[stage].values())
        for who in GROUPS:
            instructions, before = counts[stage][who], kept.get(stage, {}).get(who)
            if max(instructions, before or 0) < SHARE_MIN * total:
                continue
            change = "not compared" if who != "own" and not foreign else "new"
            if before is not None and change == "new":
                growth = instructions / before - 1 if before else float("inf")
                change = f"{growth:+.1%}"
                if growth > TOLERANCE:
                    change += " WORSE"
                    worse.append(f"{stage}/{who}")
                elif growth < -TOLERANCE:
                    better.append(f"{stage}/{who}")
            print(f"| {stage} | {who} | {instructions:,} | {'' if before is None else f'{before:,}'} | {change} |")
            sys.stdout.flush()
    if bless:
        write_kept(now, counts)
        print(f"\nwritten to {os.path.relpath(KEPT)}")
        return
    gone = [s for s in kept if s not in counts]
    if gone:
        print(f"\nno longer there: {', '.join(gone)}")
    if not foreign and made:
        print(f"\nlibc, blake3 and zstd are not compared: counted with {made}, this is {now}")
    if made.get("rustc") != now["rustc"]:
        print(f"\nthe kept counts are of rustc {made.get('rustc')}, this is {now['rustc']}")
    if better:
        print(f"\nover {TOLERANCE:.0%} better, worth keeping with --bless: {', '.join(better)}")
    missing = [s for s in stages if s not in kept]
    if worse or missing:
        print(f"\nover {TOLERANCE:.0%} worse: {', '.join(worse) or 'none'}; not known yet: {', '.join(missing) or 'none'}")
        sys.exit(1)


if __name__ == "__main__":
    main()
