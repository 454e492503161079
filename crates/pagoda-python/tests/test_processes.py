"""Forked children, multiprocessing, the end of Python, and a Python without NumPy."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from conftest import content, is_direct

import pagoda

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def in_child(body):
    """What `body` returns in a forked child, as text, and how the child ended."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(told)
            os.dup2(tell, 2)
            os.write(tell, str(body()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(tell)
    with open(told) as file:
        text = file.read()
    return text, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def refusals(manager, region):
    said = []
    for call in (lambda: manager.zeros(1), manager.stats, region.usage, lambda: memoryview(region), region.prefetch):
        try:
            call()
            said.append("nothing")
        except RuntimeError as error:
            said.append(str(error))
    region.close()
    manager.close()
    return set(said)


def test_calls_of_a_child_are_refused_and_its_parent_loses_nothing(manager):
    expected = content(4 << 20, "float32")
    array = manager.array(expected)
    region = pagoda.region_of(array)
    region.page_out()
    text, status = in_child(lambda: refusals(manager, region))
    assert status == 0 and "build a manager in the child" in text and "nothing" not in text, text
    assert np.array_equal(array, expected)
    del array


def test_a_child_that_touches_an_array_of_its_parent_says_so_as_it_ends(manager):
    array = manager.array(content(1 << 20))
    text, status = in_child(lambda: array[5])
    assert status == -signal.SIGSEGV and "pagoda: a forked child touched an array" in text, (status, text)
    # Nor can the address have become another array's.
    text, status = in_child(lambda: (bytearray(array.nbytes), np.zeros(1 << 20) + 1, array[5]))
    assert status == -signal.SIGSEGV and "pagoda: a forked child" in text, (status, text)
    del array


def test_a_child_has_managers_of_its_own(manager):
    array = manager.array(content(1000))

    def own():
        with pagoda.Manager("32M", user_mode_only=True) as mine:
            copy = mine.array(content(1 << 20))
            pagoda.region_of(copy).page_out()
            total = copy.sum()
            del copy
            return total == content(1 << 20).sum()

    assert in_child(own) == ("True", 0)
    assert np.array_equal(array, content(1000))
    del array


def total(array):
    return array.sum()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_multiprocessing_gets_copies(user_manager, method):
    array = user_manager.array(content(1 << 16))
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(total, (array,)) == array.sum()
    del array


def run(program, *arguments, **options):
    command = [sys.executable, *options.pop("flags", []), "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_a_file_is_written_when_python_ends_with_arrays_alive(disk):
    program = """
        import sys, pagoda
        m = pagoda.Manager("32M", user_mode_only=True)
        a = m.memmap(sys.argv[1], "u1", 100_000, "w+", buffered=sys.argv[2] == "True")
        a[99_999] = 9
        kept = [a, m]
        kept.append(kept)
    """
    path = disk / "at-the-end"
    ended = run(program, path, not is_direct(disk))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert path.read_bytes()[-1] == 9


def test_without_numpy_regions_work_and_arrays_say_what_is_missing():
    program = """
        import sys
        sys.modules["numpy"] = None
        import pagoda
        with pagoda.Manager("32M", user_mode_only=True) as m:
            r = m.region(5)
            with memoryview(r) as view:
                view[:] = b"bytes"
                r.page_out()
                assert bytes(view) == b"bytes"
            for call in (lambda: m.zeros(3), lambda: m.memmap("none")):
                try:
                    call()
                except ModuleNotFoundError as error:
                    print(error)
    """
    ended = run(program)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("pip install numpy") == 2


def test_a_budget_that_is_passed_is_a_warning():
    program = """
        import time, warnings, numpy as np, pagoda
        with warnings.catch_warnings(record=True) as told, pagoda.Manager("32M", user_mode_only=True) as m:
            warnings.simplefilter("always")
            a = m.array(np.random.default_rng(1).integers(0, 1 << 62, 6 << 20))
            until = time.monotonic() + 20
            while not told and time.monotonic() < until:
                time.sleep(0.01)
            del a
        print(*(w.message for w in told))
    """
    ended = run(program)
    assert ended.returncode == 0 and "the budget is passed by" in ended.stdout, (ended.stdout, ended.stderr)
    assert "spill_to" in ended.stdout
