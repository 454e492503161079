"""The cost of faults with the GIL held: the thread that waits for a page keeps all other threads of Python waiting.

One thread reads single elements, each on a page that is swapped out; `array[i]` does not release the GIL. A second thread
takes turns: each turn notes the time. The table has, for each way to serve faults and each place of the pages: the median
and the 99th percentile of a read in µs, the turns of the second thread as a share of those it takes beside reads of
resident pages, and the longest time without a turn, in ms. 5 ms of that are Python's own: its switch interval.

    python bench/gil.py [--reads 4000] [--directory /var/tmp]
"""

import argparse
import os
import statistics
import tempfile
import threading
import time

import numpy as np

import pagoda

PAGE = 4096
ARRAY_PAGES = 16 << 10  # 64 MiB


def beside_another_thread(body):
    """Runs `body` beside a thread that only takes turns: its result, turns a second, and the longest time without one."""
    end, turns, longest = False, 0, 0.0

    def turn():
        nonlocal turns, longest
        last = time.perf_counter()
        while not end:
            now = time.perf_counter()
            turns, longest, last = turns + 1, max(longest, now - last), now

    thread = threading.Thread(target=turn)
    thread.start()
    begin = time.perf_counter()
    result = body()
    seconds = time.perf_counter() - begin
    end = True
    thread.join()
    return result, turns / seconds, longest


def read(array, pages):
    """The time of each read of one element, in µs."""
    times = []
    for page in pages:
        begin = time.perf_counter()
        array[page * PAGE]
        times.append((time.perf_counter() - begin) * 1e6)
    return times


def random_pages(reads):
    return [int(page) for page in np.random.default_rng(2).permutation(ARRAY_PAGES)[:reads]]


def row(name, array, swap_out, reads):
    pages = random_pages(reads)
    read(array, pages)
    _, alone, _ = beside_another_thread(lambda: [read(array, pages) for _ in range(20)])
    swap_out()
    quiet = read(array, pages)
    swap_out()
    _, beside, longest = beside_another_thread(lambda: read(array, pages))
    percentile = statistics.quantiles(quiet, n=100)[98]
    print(f"| {name} | {statistics.median(quiet):.1f} | {percentile:.1f} | {beside / alone:.2f} | {longest * 1e3:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reads", type=int, default=4000)
    parser.add_argument("--directory", default="/var/tmp")
    arguments = parser.parse_args()
    content = np.random.default_rng(1).integers(0, 1 << 16, (ARRAY_PAGES * PAGE) // 8).view("u1")
    print("| served by, pages in | read, µs | 99th, µs | turns of another thread | longest without, ms |")
    print("|---|---|---|---|---|")
    for mode, options in (("a handler", {}), ("the thread", {"serve_in_thread": True})):
        with pagoda.Manager("256M", **options) as manager:
            array = manager.array(content)
            row(f"{mode}, compressed memory", array, pagoda.region_of(array).page_out, arguments.reads)
            del array
    with tempfile.NamedTemporaryFile(dir=arguments.directory) as file, pagoda.Manager("32M") as manager:
        for _ in range(2):
            content.tofile(file)
        os.fsync(file.fileno())
        array = manager.memmap(file.name, mode="r")
        # The second half takes the budget twice over: nothing of the first one is left in memory.
        row("a handler, the disk", array, lambda: int(array[len(array) // 2 :: PAGE].sum()), arguments.reads)
        del array


if __name__ == "__main__":
    main()
