"""Arrays: their content beyond the budget, their shapes and types, and how long their memory lives."""

import gc
import sys
import threading

import numpy as np
import pytest
from conftest import content, make

import pagoda


def test_content_beyond_the_budget_is_kept(manager):
    expected = content((48, 128, 1024))
    array = manager.array(expected)
    stats = manager.stats()
    assert array.nbytes == 48 << 20 and stats["budget_bytes"] == 32 << 20
    assert stats["stored_bytes"] > 0 and stats["resident_bytes"] <= 32 << 20
    assert np.array_equal(array, expected)
    array *= 2
    assert np.array_equal(array, expected * 2)
    assert sum(pagoda.region_of(array).usage().values()) == array.nbytes
    del array


def test_shapes_dtypes_and_orders_are_numpys_own(user_manager):
    pair = np.dtype([("key", "i4"), ("value", "f8")])
    for shape, dtype in [(5, "f4"), ((3, 4), pair), ((2, 3), ("f4", (2,))), ((), "i8"), ((0, 7), "u1"), ([2, 2], "S3")]:
        for order in "CF":
            own, numpys = user_manager.zeros(shape, dtype, order=order), np.zeros(shape, dtype, order)
            assert own.shape == numpys.shape and own.dtype == numpys.dtype and own.strides == numpys.strides
            assert np.array_equal(own, numpys) and own.flags.writeable
    named = user_manager.array([(1, 2.5)], pair)
    assert named["value"][0] == 2.5 and user_manager.array(["a", "bcd"]).dtype == "U3"
    assert user_manager.empty(3).dtype == "float64"
    del own, named


def test_what_cant_be_an_array_says_why(user_manager):
    with pytest.raises(TypeError, match="references to Python objects"):
        user_manager.zeros(3, object)
    with pytest.raises(ValueError, match="negative"):
        user_manager.zeros((2, -1))
    with pytest.raises(ValueError, match='"C" or "F"'):
        user_manager.zeros(3, order="K")
    with pytest.raises((MemoryError, OverflowError)):
        user_manager.zeros(1 << 62)
    with pytest.raises(MemoryError, match="ask for less"):
        user_manager.zeros(1 << 50)


def test_an_array_keeps_its_memory_and_close_is_refused_as_long_as_it_lives():
    manager = make("user")
    array = manager.array(content(1 << 16))
    part = array.reshape(256, 256)[3:, ::2]
    region = pagoda.region_of(part)
    assert region is pagoda.region_of(array)
    expected = part.copy()
    del array
    region.page_out()
    for refused in (region.close, manager.close):
        with pytest.raises(BufferError, match="1 array"):
            refused()
    assert not region.closed and not manager.closed and np.array_equal(part, expected)
    del part
    gc.collect()
    with region:
        pass
    assert region.closed
    with pytest.raises(ValueError, match="closed"):
        region.usage()
    manager.close()
    manager.close()
    with pytest.raises(ValueError, match="closed"):
        manager.zeros(1)
    assert repr(manager) == "<pagoda.Manager, closed>"


def test_an_array_outlives_every_name_of_its_manager():
    array = make("user").array(content(1 << 20))
    gc.collect()
    pagoda.region_of(array).page_out()
    assert np.array_equal(array, content(1 << 20))


def test_an_error_in_the_block_is_not_hidden_by_a_refused_close():
    with pytest.raises(ZeroDivisionError), make("user") as manager:
        kept = manager.zeros(5)
        kept[0] = 1 / 0
    assert not manager.closed
    del kept
    gc.collect()
    manager.close()


def test_views_by_the_buffer_protocol_count_too(user_manager):
    region = user_manager.region("1M")
    view = memoryview(region)
    assert (view.nbytes, view.readonly, len(region)) == (1 << 20, False, 1 << 20)
    view[5:8] = b"abc"
    part = view[4:9]
    view.release()
    with pytest.raises(BufferError):
        region.close()
    region.page_out()
    assert bytes(part) == b"\0abc\0"
    part.release()
    region.close()
    with pytest.raises(ValueError, match="closed"):
        memoryview(region)


def test_the_memory_of_a_result_is_not_the_managers(user_manager):
    array = user_manager.zeros(10)
    for other in (array + 1, array.copy(), array[[1, 2]], np.zeros(3)):
        with pytest.raises(TypeError, match="no manager's memory"):
            pagoda.region_of(other)
    del array


def test_other_threads_of_python_run_while_a_call_waits(user_manager):
    array = user_manager.array(content(2 << 20))
    region = pagoda.region_of(array)
    go, has_run = threading.Event(), []

    def run():
        go.wait()
        has_run.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # seconds: the thread runs when a call of this one releases the GIL, and not before
    try:
        go.set()
        for _ in range(50):
            region.page_out()
            region.prefetch()
            if has_run:
                break
        assert has_run
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    del array


def test_parts_and_pins(user_manager):
    array = user_manager.array(content((512, 1024)))
    region = pagoda.region_of(array)
    region.page_out()
    assert region.usage()["resident"] == 0
    rows = array[10:12, ::-1]
    with pagoda.pinned(rows) as pin:
        assert region.usage()["resident"] >= rows.nbytes
        pin.release()
    assert region.prefetch(1 << 20, 4096) > 0
    region.will_need()
    with pytest.raises(BufferError, match="could not pin 16 MiB"):
        user_manager.region("16M").pin()
    for part in [(0, 0), (region.nbytes, None), (0, region.nbytes + 1)]:
        with pytest.raises(IndexError, match="within the region"):
            region.prefetch(*part)
    del array, rows


def test_spilled_content_is_kept(disk):
    with make("user", spill_to=disk, spill_limit="256M") as manager:
        random = np.random.default_rng(3).integers(0, 1 << 62, (48 << 20) // 8)
        array = manager.array(random)
        assert manager.stats()["spilled_bytes"] > 0
        assert np.array_equal(array, random)
        del array


def test_figures_and_sizes():
    with make("user") as manager:
        stats = manager.stats()
        assert stats["budget_bytes"] == 32 << 20 and all(type(value) is int for value in stats.values())
        assert repr(manager).startswith("<pagoda.Manager of 32 MiB: ") and "\n" not in repr(manager)
        manager.set_budget(48 << 20)
        assert "of 48 MiB" in repr(manager)
        with pytest.raises(ValueError):
            manager.set_budget("1T")
    for wrong in ("a lot", "12X", ""):
        with pytest.raises(ValueError, match="is not a size"):
            pagoda.Manager(wrong)
    with pytest.raises(TypeError, match="a size is"):
        pagoda.Manager(1.5)
    with pytest.raises(ValueError, match="belong together"):
        pagoda.Manager("32M", spill_to="/var/tmp")
    with pytest.raises(RuntimeError, match="give 32 MiB or more"):
        pagoda.Manager("1M", user_mode_only=True)
