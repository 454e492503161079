"""A file of rows larger than memory: Pagoda's memmap beside numpy.memmap, as it is and with MADV_RANDOM, and zarr with Blosc.

Each side runs in processes of its own below one memory cgroup, with the same limit for all that they take: Python, arrays
and the kernel's cache. The kernel's cache of the files is dropped before each. A round runs all sides once for each row,
one after another. It prints a table of medians, in seconds, and of ratios from the least to the most of any round: above 1
Pagoda is faster.

    python bench/memmap.py [--mib 1024] [--memory 256] [--rows 20000] [--rounds 3] [--directory /var/tmp] [--json]

As root, with cgroup v1's memory controller mounted at /sys/fs/cgroup/memory, and zarr installed (or `--sides` without it).
"""

import argparse
import json
import mmap
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

WIDTH = 1024  # float32 a row: one OS page
BLOCK = 4096  # rows at a time of a sequential pass: 16 MiB
CHUNK = 256  # rows of a chunk of zarr's: 1 MiB
# The part of the limit that is not in the manager's budget: Python, NumPy, a block, the manager's tables.
REST_MIB = 96
SIDES = ("pagoda", "memmap", "madv-random", "zarr")
WORK = ("random rows", "sum", "write", "x2 in place")
CGROUPS = pathlib.Path("/sys/fs/cgroup/memory")


def content(rows):
    """Blocks of rows of which half of the numbers repeat. Each block differs from the one before."""
    import numpy as np

    values = np.random.default_rng(0).random((BLOCK, WIDTH), "float32")
    values[:, ::2] = 1
    for at in range(0, rows, BLOCK):
        yield at, values
        values += 1


def opened(side, path, rows, memory_mib):
    """The array of a side, and a call that returns when its writes are on stable storage."""
    import numpy as np

    if side == "zarr":
        import zarr

        return zarr.open_array(path, mode="r+"), os.sync
    if side == "pagoda":
        import pagoda

        manager = pagoda.Manager(f"{memory_mib - REST_MIB}M")
        array = manager.memmap(path, "float32", (rows, WIDTH))
        return array, array.flush
    array = np.memmap(path, "float32", "r+", shape=(rows, WIDTH))
    if side == "madv-random":
        array._mmap.madvise(mmap.MADV_RANDOM)
    return array, array.flush


def work(name, array, rows, random_rows):
    import numpy as np

    total, (_, values) = 0.0, next(content(BLOCK))
    if name == "random rows":
        for row in np.random.default_rng(1).integers(0, rows, random_rows):
            total += float(array[int(row)].sum())
        return total
    for at in range(0, rows, BLOCK):
        if name == "sum":
            total += float(array[at : at + BLOCK].sum(dtype="float64"))
        elif name == "write":
            array[at : at + BLOCK] = values
        else:
            array[at : at + BLOCK] *= 2
    return total


def child(arguments):
    """One side's one row of the table, in this process."""
    rows = arguments.mib * 256
    array, flush = opened(arguments.side, arguments.path, rows, arguments.memory)
    begin = time.perf_counter()
    total = work(arguments.work, array, rows, arguments.rows)
    if arguments.work in ("write", "x2 in place"):
        flush()
    print(json.dumps({"seconds": time.perf_counter() - begin, "total": total}))


def make(path, rows, side):
    if side == "zarr":
        import zarr
        from zarr.codecs import BloscCodec

        codec = BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")
        array = zarr.create_array(path, shape=(rows, WIDTH), chunks=(CHUNK, WIDTH), dtype="float32", compressors=codec)
        for at, values in content(rows):
            array[at : at + BLOCK] = values
    else:
        with open(path, "wb") as file:
            for _, values in content(rows):
                values.tofile(file)


def drop_caches(path):
    os.sync()
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def run(arguments, group, side, name, path):
    drop_caches(path)
    command = [sys.executable, __file__, "--side", side, "--work", name, "--path", str(path)]
    for option in ("mib", "memory", "rows"):
        command += [f"--{option}", str(getattr(arguments, option))]
    (group / "memory.max_usage_in_bytes").write_text("0")

    def join():
        (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(command, preexec_fn=join, stdout=subprocess.PIPE, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{side}, {name}: ended with {done.returncode}")
    peak = int((group / "memory.max_usage_in_bytes").read_text()) >> 20
    return json.loads(done.stdout) | {"peak_mib": peak}


def measure(arguments, directory, group):
    rows, sides = arguments.mib * 256, arguments.sides.split(",")
    paths = {side: directory / ("chunks" if side == "zarr" else "rows") for side in sides}
    runs = []
    for round in range(arguments.rounds):
        # Each round begins with the same content.
        for side in {path: side for side, path in paths.items()}.values():
            subprocess.run(["rm", "-rf", paths[side]], check=True)
            make(paths[side], rows, side)
        for name in WORK:
            for side in sides:
                path = paths[side]
                ran = run(arguments, group, side, name, path)
                runs.append({"round": round, "work": name, "side": side} | ran)
                print(f"round {round}, {name}, {side}: {ran['seconds']:.2f} s, {ran['peak_mib']} MiB", file=sys.stderr)
    return runs


def table(runs, arguments):
    sides = arguments.sides.split(",")
    head = ["row", *(f"{side}, s" for side in sides), *(f"of {side}" for side in sides[1:])]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in WORK:
        seconds = {side: [run["seconds"] for run in runs if (run["work"], run["side"]) == (name, side)] for side in sides}
        cells = [name, *(f"{statistics.median(seconds[side]):.2f}" for side in sides)]
        for side in sides[1:]:
            ratios = [other / own for own, other in zip(seconds["pagoda"], seconds[side], strict=True)]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def expect_same_sums(runs):
    """Checks that all sides have read the same rows. Rows of the table that only write have no sum."""
    for name in WORK:
        totals = [run["total"] for run in runs if run["work"] == name]
        if max(totals) - min(totals) > abs(max(totals)) * 1e-6:
            sys.exit(f"{name}: the sides' sums differ: {totals}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024, help="the file's length")
    parser.add_argument("--memory", type=int, default=256, help="the limit of each side, in MiB")
    parser.add_argument("--rows", type=int, default=20_000, help="how many rows are read at random")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--json", action="store_true")
    for name in ("side", "work", "path"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        child(arguments)
        return
    if arguments.memory < 2 * REST_MIB:
        sys.exit(f"--memory {arguments.memory}: {2 * REST_MIB} MiB is the least that has room for Python and a budget")
    # A signal, too, removes the files and the cgroup below.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    group = CGROUPS / f"pagoda-python-bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        sys.exit(f"could not make a memory cgroup ({error}); run as root where cgroup v1 is mounted at {CGROUPS}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(arguments.memory << 20))
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            runs = measure(arguments, pathlib.Path(directory), group)
    finally:
        group.rmdir()
    expect_same_sums(runs)
    machine = f"{os.cpu_count()} processors, Linux {platform.release()}, Python {platform.python_version()}"
    if arguments.json:
        print(json.dumps({"machine": machine, "options": vars(arguments), "runs": runs}, indent=1))
    else:
        print(f"{arguments.mib} MiB of file in {arguments.memory} MiB of memory, {arguments.rounds} rounds, {machine}\n")
        print(table(runs, arguments))


if __name__ == "__main__":
    main()
