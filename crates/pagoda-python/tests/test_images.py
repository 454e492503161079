"""Arrays that are saved to images and restored from them, while other threads run."""

import threading

import numpy as np
import pytest
from conftest import content, make

import pagoda


def test_an_array_larger_than_the_budget_comes_back_from_its_image(manager, disk):
    path, expected = disk / "rows.pim", content((20, 256, 1024), "float32")
    array = manager.array(expected)
    saved = manager.snapshot(array, path)
    assert 0 < saved["file_bytes"] < expected.nbytes * 1.1 and 0 <= saved["pause_seconds"] < 10
    array[3] = 0
    back = manager.restore(path, "float32", expected.shape)
    assert np.array_equal(back, expected)
    back[5] += 1
    again = manager.restore(path, "float32", expected.shape, prefetch=False)
    assert np.array_equal(again, expected)
    pagoda.region_of(again).record_working_set()
    assert (disk / "rows.pim.ws").exists()
    assert manager.restore(path).nbytes >= expected.nbytes
    del array, back, again


def test_a_save_over_another_has_what_was_written_since(user_manager, disk):
    expected = content((8, 256, 1024), "float32")
    array = user_manager.array(expected)
    pagoda.region_of(array).track_saves()
    whole = user_manager.snapshot(array, disk / "0.pim")
    for save in (1, 2):
        array[save] += 1
        expected[save] += 1
        since = user_manager.snapshot(array, disk / f"{save}.pim", base=disk / f"{save - 1}.pim")
        assert 0 < since["file_bytes"] < whole["file_bytes"] / 4
        back = user_manager.restore(disk / f"{save}.pim", "float32", expected.shape)
        assert np.array_equal(back, expected)
        del back
    with pytest.raises(FileNotFoundError):
        user_manager.snapshot(array, disk / "3.pim", base=disk / "none.pim")
    pagoda.region_of(array).track_saves(False)
    user_manager.snapshot(array, disk / "other.pim")
    with pytest.raises(OSError, match="another image"):
        user_manager.snapshot(array, disk / "other.pim", base=disk / "0.pim")
    del array


def test_an_image_is_of_one_moment_while_threads_of_python_write(user_manager, disk):
    path, array = disk / "counts.pim", user_manager.zeros(1 << 20, "u8")
    ends = threading.Event()

    def count():
        while not ends.is_set():
            # Under the GIL, one after the other.
            value = int(array[0]) + 1
            array[0] = value
            array[1 << 19] = value

    writer = threading.Thread(target=count)
    writer.start()
    try:
        for _ in range(5):
            user_manager.snapshot(array, path)
            back = user_manager.restore(path, "u8", array.shape)
            assert int(back[0]) - int(back[1 << 19]) in (0, 1)
            del back
    finally:
        ends.set()
        writer.join()
    del array


def test_what_is_refused_says_why(user_manager, disk):
    with pytest.raises(FileNotFoundError):
        user_manager.restore(disk / "none.pim")
    (disk / "none.pim").write_bytes(b"no image" * 1000)
    (disk / "none.pim.key").write_bytes(b"0" * 64)
    with pytest.raises(ValueError):
        user_manager.restore(disk / "none.pim")
    array = user_manager.zeros(1000, "u1")
    user_manager.snapshot(array, disk / "small.pim")
    with pytest.raises(ValueError, match="the array takes"):
        user_manager.restore(disk / "small.pim", "u8", 1 << 20)
    with pytest.raises(TypeError):
        user_manager.snapshot(np.zeros(10), disk / "small.pim")
    del array
    make("user").close()
