"""Other libraries on managed memory: they use it in place, and keep it alive."""

import gc

import numpy as np
import pytest
from conftest import content

import pagoda


def address(array):
    return array.__array_interface__["data"][0]


def expect_alive(manager, region):
    with pytest.raises(BufferError):
        region.close()
    region.page_out()


def test_pandas_frames_are_views(user_manager):
    pandas = pytest.importorskip("pandas")
    values = content((50_000, 4))
    array = user_manager.array(values)
    region = pagoda.region_of(array)
    frame = pandas.DataFrame(array, columns=list("abcd"), copy=False)
    assert np.shares_memory(frame.to_numpy(), array)
    del array
    expect_alive(user_manager, region)
    assert frame["c"].sum() == values[:, 2].sum() and frame.groupby("a").size().sum() == 50_000
    del frame
    gc.collect()
    region.close()


def test_arrow_buffers_and_arrays_are_views(user_manager):
    arrow = pytest.importorskip("pyarrow")
    values = content(100_000)
    array = user_manager.array(values)
    region = pagoda.region_of(array)
    buffer = arrow.py_buffer(region)
    made = arrow.Array.from_buffers(arrow.float64(), len(values), [None, buffer])
    assert buffer.address == address(array)
    del array, buffer
    expect_alive(user_manager, region)
    assert made.sum().as_py() == values.sum()
    del made
    gc.collect()
    region.close()


def test_polars_series_are_views_by_way_of_arrow(user_manager):
    arrow, polars = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    values = content(100_000)
    region = user_manager.region(values.nbytes)
    np.copyto(np.frombuffer(region, "float64"), values)
    made = arrow.Array.from_buffers(arrow.float64(), len(values), [None, arrow.py_buffer(region)])
    series = polars.from_arrow(made)
    del made
    expect_alive(user_manager, region)
    assert series.sum() == values.sum() and series.filter(series == 7).len() == (values == 7).sum()
    frame = polars.DataFrame({"a": user_manager.array(values)})
    assert frame["a"].sum() == values.sum()
    del series, frame
    gc.collect()
    region.close()
