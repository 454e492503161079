"""What the tests share: managers of a small budget, in each mode that this machine allows."""

import os
import pathlib

import numpy as np
import pytest

import pagoda

BUDGET = "32M"
MODES = ("full", "user", "thread")


def make(mode="full", **options):
    """A manager, or a skip where this process may not have the faults of system calls."""
    options |= {"user_mode_only": mode == "user", "serve_in_thread": mode == "thread"}
    try:
        return pagoda.Manager(BUDGET, **options)
    except PermissionError as error:
        if mode != "full" or os.environ.get("PAGODA_NO_SKIPS"):
            raise
        pytest.skip(str(error))


@pytest.fixture(params=MODES)
def manager(request):
    """A manager of each mode. The test has to delete its arrays."""
    manager = make(request.param)
    yield manager
    manager.close()


@pytest.fixture
def user_manager():
    """A manager of the mode that needs no privilege."""
    manager = make("user")
    yield manager
    manager.close()


@pytest.fixture
def disk(tmp_path_factory):
    """A directory on a disk. That of pytest may be on a tmpfs, whose files can't be mapped."""
    path = pathlib.Path("/var/tmp") / f"pagoda-python-{os.getpid()}"
    path.mkdir()
    yield path
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def content(shape, dtype="float64", seed=1):
    """Numbers of which half repeat, as data often does."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 1 << 20, shape)
    values.reshape(-1)[::2] = 7
    return values.astype(dtype)


def is_direct(disk):
    """Whether that disk has direct I/O; without it a file is mapped with `buffered`."""
    try:
        os.close(os.open(disk / "direct", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError:
        return False
    return True
