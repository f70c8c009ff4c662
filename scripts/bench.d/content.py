"""What is moved: trees made from fixed seeds, so that every machine moves the same."""

import os
import random
import shutil
import subprocess

FULL = 2_000_000_000
"""Bytes of the large file to which the other contents' sizes below belong."""

SOURCES = ("/usr/include", "/usr/share/doc", "~/.cargo/registry/src")


class Content:
    def __init__(self, name, what, make, is_stream=False):
        self.name, self.what, self.make = name, what, make
        # Bytes from standard input to standard output, not a tree.
        self.is_stream = is_stream


def fill(rng, path, size):
    with open(path, "wb") as f:
        while size > 0:
            f.write(rng.randbytes(min(size, 1 << 24)))
            size -= 1 << 24


def big(dest, scale):
    fill(random.Random(2), os.path.join(dest, "big"), int(FULL * scale))


def small(dest, scale):
    """65,000 files of 3.1 GB, their sizes log-normal as in home directories, in 2,000 directories."""
    rng = random.Random(1)
    files, total = max(1, int(65_000 * scale)), 3.1e9 * scale
    sizes = [rng.lognormvariate(9, 1.8) for _ in range(files)]
    factor = total / sum(sizes)
    write_files(dest, rng, [int(size * factor) for size in sizes], lambda i: f"m{i % 40:02}/d{i // 40 % 50:02}")


def tiny(dest, scale):
    """200,000 files of 0 to 4 KiB, a thousand in a directory."""
    rng = random.Random(3)
    write_files(dest, rng, [rng.randint(0, 4096) for _ in range(int(200_000 * scale))], lambda i: f"d{i // 1000:03}")


def write_files(dest, rng, sizes, directory):
    # Slices of one pool of noise: no two files are alike, and nothing shrinks within a chunk.
    pool = memoryview(rng.randbytes(1 << 24))
    for i, size in enumerate(sizes):
        parent = os.path.join(dest, directory(i))
        os.makedirs(parent, exist_ok=True)
        start = rng.randrange(1 << 23)
        with open(os.path.join(parent, f"f{i:06}"), "wb") as f:
            while size > 0:
                size -= f.write(pool[start:start + min(size, 1 << 23)])


def one(dest, _scale):
    fill(random.Random(4), os.path.join(dest, "one"), 4096)


def text(dest, scale):
    """Logs of 64 MiB each, 1 GB in all."""
    rng = random.Random(5)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(3000)]

    def line():
        when = f"2026-01-{rng.randint(1, 28):02} {rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
        return f"{when} host{rng.randint(1, 40)} {' '.join(rng.choices(words, k=rng.randint(4, 12)))}\n"

    # Making all of it anew would take minutes; within a chunk it is new.
    blocks = ["".join(line() for _ in range(40_000)).encode() for _ in range(8)]
    left, number = int(1e9 * scale), 0
    while left > 0:
        with open(os.path.join(dest, f"log{number:03}"), "wb") as f:
            while left > 0 and f.tell() < 64 << 20:
                left -= f.write(rng.choice(blocks)[:left])
        number += 1


def source(dest, _scale):
    """What lies about on a developer's machine: headers, documentation, sources of crates."""
    for path in map(os.path.expanduser, SOURCES):
        if os.path.isdir(path):
            subprocess.run(["cp", "-a", path, os.path.join(dest, path.strip("/").replace("/", "-"))], check=True)


CONTENTS = {c.name: c for c in (
    Content("big", "one incompressible file", big),
    Content("stream", "one incompressible file, standard input to standard output", big, True),
    Content("turns", "standard input and output of 200 MB/s, each still every other second, in turn", big, True),
    Content("small", "small files, log-normal sizes", small),
    Content("tiny", "files of 0 to 4 KiB", tiny),
    Content("source", "headers, documentation and sources of this machine", source),
    Content("text", "logs", text),
    Content("one", "one file of 4 KiB", one),
)}


class Made:
    """One content on the disk, with its pieces for who splits it by hand; replaced by the next."""

    def __init__(self, root):
        self.root, self.key = root, None

    @property
    def tree(self):
        return os.path.join(self.root, "tree")

    @property
    def file(self):
        return os.path.join(self.tree, "big")

    def make(self, content, scale):
        # The stream is the file of big.
        key = (content.make, scale)
        if self.key != key:
            self.drop()
            os.makedirs(self.tree)
            content.make(self.tree, scale)
            self.key = key
        self.files = self.bytes = 0
        for parent, _, names in os.walk(self.tree):
            found = [os.lstat(os.path.join(parent, name)) for name in names]
            self.files += len(found)
            self.bytes += sum(stat.st_size for stat in found)

    def pieces(self, rates):
        """The large file in one piece for each link, by the links' rates; their directories."""
        made = [os.path.join(self.root, f"piece{i}") for i in range(len(rates))]
        size, start = os.path.getsize(self.file), 0
        for i, directory in enumerate(made):
            os.makedirs(directory, exist_ok=True)
            end = size if i == len(rates) - 1 else start + int(size * rates[i] / sum(rates))
            piece = os.path.join(directory, f"part{i}")
            if not os.path.exists(piece) or os.path.getsize(piece) != end - start:
                with open(self.file, "rb") as whole, open(piece, "wb") as out:
                    whole.seek(start)
                    while out.tell() < end - start:
                        out.write(whole.read(min(1 << 24, end - start - out.tell())))
            start = end
        return made

    def drop_pieces(self):
        for name in os.listdir(self.root):
            if name.startswith("piece"):
                shutil.rmtree(os.path.join(self.root, name))

    def drop(self):
        shutil.rmtree(self.root, ignore_errors=True)
        self.key = None
