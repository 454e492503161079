"""Files as arrays: what they hold, what reaches the disk and when, and what is refused."""

import io
import tempfile

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


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_only_the_part_of_an_array_is_mapped(manager, disk, buffered, mode):
    path, expected = disk / "rows", content((6, 256, 1024), "float32").ravel()
    expected.tofile(path)
    first, count = 5 * 1024 + 3, 700_001
    array = manager.memmap(path, "float32", count, mode, offset=first * 4, buffered=buffered)
    assert np.array_equal(array, expected[first : first + count])
    memory = pagoda.region_of(array)
    assert 0 <= memory.nbytes - count * 4 - 12 < (1 if mode != "c" else 2 << 20)
    if mode != "r":
        array += 1
        array.flush()
    del memory, array
    if mode == "r+":
        expected[first : first + count] += 1
    assert np.array_equal(np.fromfile(path, "float32"), expected)
    with manager.file(path, offset=4096, nbytes=100, buffered=buffered) as file:
        assert bytes(file) == expected[1024:1049].tobytes()
    with pytest.raises(ValueError, match="multiple of 4 KiB"):
        manager.file(path, offset=100)
    with pytest.raises(ValueError, match="ends before"):
        manager.private_file(path, offset=4096, nbytes=expected.nbytes, buffered=buffered)


def test_an_open_file_without_a_name(user_manager, disk):
    with tempfile.TemporaryFile(dir=disk) as file:
        array = user_manager.memmap(file, "i4", 3000, "w+", offset=8, buffered=True)
        array[...] = range(3000)
        array.flush()
        del array
        again = user_manager.memmap(file, "i4", mode="c", offset=8, buffered=True)
        assert again.shape == (3000,) and np.array_equal(again, range(3000))
        del again


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
    with pytest.raises(FileNotFoundError, match="missing"):
        map_it(disk / "missing")
    with pytest.raises(FileNotFoundError, match="could not open"):
        user_manager.file(disk / "missing")
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


def test_large_assignments_are_not_read_first_and_are_what_numpy_makes_of_them(manager, disk, buffered):
    """NumPy's own file has the same content after each, also where the assignment is no copy of bytes."""
    shape = (48, 256, 1024)
    path, other, start = disk / "rows", disk / "other", content(shape, "float32")
    start.tofile(path)
    start.tofile(other)
    array = manager.memmap(path, "float32", shape, buffered=buffered)
    expected = np.memmap(other, "float32", "r+", shape=shape)
    far = content(shape, "float32", seed=2)
    array[...] = far
    expected[...] = far
    # A page is read where no frame is to be had at once.
    assert pagoda.region_of(array).usage()["read"] < array.nbytes / 10

    def fill(rows):
        rows[20] = far[1]
        rows[-3:-1, ...] = far[2:4]
        rows[4:8] = far[8:4:-1]  # not contiguous
        rows[:, :128] = far[:, 128:]
        rows[9:12] = far[9:12].astype("float64")
        rows[12:14] = far[12]  # broadcast
        rows[[1, 2]] = far[6:8]  # by a list
        rows[2:10] = rows[0:8]  # the same memory
        rows[10:14] *= 2
        rows[...] = np.asfortranarray(far)
        rows.reshape(96, -1)[7:9] = far.reshape(96, -1)[20:22]
        flat = rows.reshape(-1)
        flat[300_001:800_001] = far.reshape(-1)[5:500_005]  # no page begins there

    fill(array)
    fill(expected)
    assert np.array_equal(array, expected)
    array.flush()
    expected.flush()
    assert path.read_bytes() == other.read_bytes()
    # A source in memory of the same manager, most of it swapped out.
    rows = np.repeat(np.arange(48 * 256, dtype="float32"), 1024).reshape(shape)
    managed = manager.array(rows)
    array[...] = managed
    assert np.array_equal(array, rows)
    copy = array.copy()
    copy[3:9] = far[3:9]
    assert np.array_equal(copy[3:9], far[3:9]) and not np.array_equal(array[3:9], far[3:9])
    only_read = manager.memmap(path, "float32", shape, "r", buffered=buffered)
    with pytest.raises(ValueError, match="read-only"):
        only_read[3:9] = far[3:9]
    with pytest.raises(ValueError, match="broadcast"):
        array[3:9] = far[3:8]
    del array, managed, only_read


def test_a_part_of_fortran_order_is_written_by_columns(user_manager, disk, buffered):
    path, values = disk / "columns", np.asfortranarray(content((512, 4096), "float32"))
    array = user_manager.memmap(path, "float32", values.shape, "w+", order="F", buffered=buffered)
    array[:, 1024:] = values[:, 1024:]
    assert pagoda.region_of(array).usage()["read"] == 0 and np.array_equal(array[:, 1024:], values[:, 1024:])
    array[:, :1024] = np.ascontiguousarray(values[:, :1024])
    assert np.array_equal(array, values)
    del array
