"""Files as arrays: what they hold, what reaches the disk and when, and what is refused."""

import io

import numpy as np
import pytest
from conftest import content, is_direct, make

import pagoda


@pytest.fixture
def buffered(disk):
    return not is_direct(disk)


def test_a_file_larger_than_the_budget_is_read_and_written_in_place(manager, disk, buffered):
    path, expected = disk / "rows", content((48, 256, 1024), "float32")
    expected.tofile(path)
    array = manager.memmap(path, "float32", expected.shape, buffered=buffered)
    assert np.array_equal(array, expected)
    array *= 2
    array.flush()
    assert np.array_equal(np.fromfile(path, "float32").reshape(expected.shape), expected * 2)
    del array
    with manager.file(path, buffered=buffered) as file:
        assert (file.nbytes, file.writable, file.path) == (expected.nbytes, False, path)
        assert file.usage()["written"] == 0


def test_a_private_array_is_written_and_its_file_is_not(manager, disk, buffered):
    path, expected = disk / "rows", content((48, 256, 1024), "float32")
    expected.tofile(path)
    array = manager.memmap(path, "float32", expected.shape, "c", buffered=buffered)
    array[::7] += 1
    changed = expected.copy()
    changed[::7] += 1
    assert np.array_equal(array, changed) and array.flags.writeable
    array.flush()
    assert np.array_equal(np.fromfile(path, "float32").reshape(expected.shape), expected)
    tail = manager.memmap(path, "float32", mode="c", offset=expected.nbytes - 40, buffered=buffered)
    assert np.array_equal(tail, expected.ravel()[-10:])
    del array, tail


def test_modes_shapes_and_offsets(user_manager, disk, buffered):
    path = disk / "made"
    array = user_manager.memmap(path, "i4", (10, 3), "w+", offset=8, buffered=buffered)
    array[...] = np.arange(30).reshape(10, 3)
    assert type(array + 1) is np.ndarray and type(array[2:]) is type(array) and array.sum() == 435
    array += 1
    array.flush()
    del array
    read = user_manager.memmap(path, "i4", mode="r", buffered=buffered)
    assert read.shape == (32,) and read[2] == 1 and read[31] == 30 and not read.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        read[0] = 1
    longer = user_manager.memmap(path, "i4", 40, "r+", buffered=buffered)
    assert path.stat().st_size == 160 and longer[31] == 30 and longer[39] == 0
    fortran = user_manager.memmap(path, "i4", (4, 10), "r", order="F", buffered=buffered)
    assert fortran[1, 0] == longer[1]
    user_manager.zeros(3).view(type(longer)).flush()  # it is in no file
    del read, longer, fortran
    # A refused view is not counted: the file can be closed.
    with user_manager.file(path, buffered=buffered) as file, pytest.raises((BufferError, TypeError)):
        io.BytesIO(b"1").readinto(file)


def test_what_is_refused_says_what_to_do_and_changes_no_file(user_manager, disk, buffered):
    path = disk / "kept"
    path.write_bytes(b"1234567")
    map_it = user_manager.memmap
    with pytest.raises(ValueError, match='"r", "r\\+", "w\\+" or "c"'):
        map_it(path, mode="w")
    with pytest.raises(ValueError, match="give a smaller shape"):
        map_it(path, "u1", 8, "c")
    with pytest.raises(ValueError, match="needs a shape"):
        map_it(path, mode="w+")
    with pytest.raises(ValueError, match="give a smaller shape"):
        map_it(path, "u1", 8, "r")
    with pytest.raises(ValueError, match="no whole number"):
        map_it(path, "i4", mode="r", buffered=buffered)
    with pytest.raises(ValueError, match="before the file"):
        map_it(path, offset=-1)
    with pytest.raises(FileNotFoundError, match="could not open"):
        map_it(disk / "missing")
    with pytest.raises(ValueError, match="directory"):
        user_manager.file(disk)
    closed = make("user")
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        closed.memmap(path, "u1", 100, "w+")
    assert path.read_bytes() == b"1234567"


def test_a_private_copy_leaves_the_file_alone(user_manager, disk, buffered):
    path = disk / "original"
    path.write_bytes(bytes(range(200)))
    copy = user_manager.array(user_manager.memmap(path, mode="r", buffered=buffered))
    copy[:] = 0
    assert path.read_bytes() == bytes(range(200)) and type(copy) is np.ndarray
    del copy


def test_a_file_with_arrays_stays_open_and_closing_writes_it(disk, buffered):
    path = disk / "written"
    with make("user") as manager:
        array = manager.memmap(path, "u1", 5000, "w+", buffered=buffered)
        file = pagoda.region_of(array)
        assert isinstance(file, pagoda.File)
        array[4999] = 7
        for refused in (file.close, manager.close):
            with pytest.raises(BufferError, match="can't close a file"):
                refused()
        with pytest.raises(TypeError, match="can't be pinned"):
            pagoda.pinned(array)
        del array
    assert file.closed and path.read_bytes()[4999] == 7
    with pytest.raises(ValueError, match="closed"):
        file.flush()
