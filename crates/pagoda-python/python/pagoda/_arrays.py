"""NumPy arrays of managed memory. Imported when the first one is made.

The base of each array is a view of its region or file. NumPy keeps the base alive with every array that is derived from
it. So the memory can't be freed or closed as long as one of them is alive.
"""

import math
import operator
import os

import numpy as np

from ._pagoda import File, Region


def _shape(shape):
    try:
        shape = (operator.index(shape),)
    except TypeError:
        shape = tuple(operator.index(length) for length in shape)
    if any(length < 0 for length in shape):
        raise ValueError(f"an array has no negative dimensions, as in {shape}")
    return shape


def _dtype(dtype):
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(
            f"elements of {dtype} hold references to Python objects, which can't lie in managed memory; use a dtype of "
            "numbers or of fixed-width text"
        )
    return dtype


def _order(order):
    if order not in ("C", "F"):
        raise ValueError(f'the order of an array is "C" or "F", not {order!r}')
    return order


def empty(manager, shape, dtype, order):
    shape, dtype, order = _shape(shape), _dtype(dtype), _order(order)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes == 0:
        # An array without bytes needs no managed memory.
        return np.empty(shape, dtype, order)
    memory = np.asarray(manager.region(nbytes)._view())
    return np.ndarray(shape, dtype, memory, order=order)


def array(manager, obj, dtype, order):
    source = np.asarray(obj, None if dtype is None else _dtype(dtype))
    copy = empty(manager, source.shape, source.dtype, order)
    np.copyto(copy, source)
    return copy


# Assignments of so many bytes or more are handed to the file as a whole. They hold whole base pages.
WHOLE_BYTES = 256 << 10


class MappedArray(np.ndarray):
    """An array that is a file. The results of operations on it are ordinary arrays."""

    def __setitem__(self, index, value):
        """As for any array. A large contiguous part that is assigned is not read from the file first."""
        if type(value) in (np.ndarray, MappedArray) and value.nbytes >= WHOLE_BYTES and _written(self, index, value):
            return
        super().__setitem__(index, value)

    def flush(self):
        """Returns when all earlier writes to the file are on stable storage. Releases the GIL.

        Does nothing for an array that is in no file, as a copy.
        """
        from ._manager import region_of

        try:
            memory = region_of(self)
        except TypeError:
            return
        if isinstance(memory, File):
            memory.flush()

    def __array_wrap__(self, array, context=None, return_scalar=False):
        if array is self:
            return array
        return array[()] if return_scalar or array.shape == () else np.asarray(array)


def _written(array, index, value):
    """Whether `value` was written to that part of the file by a call. It is if both are the same bytes in a row."""
    keys = index if type(index) is tuple else (index,)
    if not all(type(key) in (slice, int) or key is Ellipsis for key in keys):
        return False
    part = array[index]
    is_same = isinstance(part, np.ndarray) and (part.dtype, part.shape) == (value.dtype, value.shape)
    if not is_same or not part.flags.writeable or np.may_share_memory(part, value):
        return False
    both = (part.flags, value.flags)
    if not (all(flags.c_contiguous for flags in both) or all(flags.f_contiguous for flags in both)):
        return False
    from ._manager import region_of

    try:
        file = region_of(part)
    except TypeError:
        return False
    if not isinstance(file, File):
        return False
    file._write(_address(part) - _address(np.asarray(file._view())), value.ravel("K").view("uint8"))
    return True


def restored(manager, path, dtype, shape, order, prefetch):
    dtype, order = _dtype(dtype), _order(order)
    region = manager.restore_region(path, prefetch=prefetch)
    shape = (region.nbytes // dtype.itemsize,) if shape is None else _shape(shape)
    if (nbytes := math.prod(shape) * dtype.itemsize) > region.nbytes:
        raise ValueError(f"the image {os.fspath(path)!r} has {region.nbytes} bytes, and the array takes {nbytes}")
    return np.ndarray(shape, dtype, np.asarray(region._view()), order=order)


# A file is mapped from a multiple of this on.
PAGE = 4096


def memmap(manager, path, dtype, shape, mode, offset, order, buffered):
    dtype, order, offset = _dtype(dtype), _order(order), operator.index(offset)
    # By its descriptor, also if its name has changed or gone. That is open as long as the mapping needs it.
    path = f"/proc/self/fd/{path.fileno()}" if hasattr(path, "fileno") else os.fspath(path)
    if mode not in ("r", "r+", "w+", "c"):
        raise ValueError(f'the mode of a mapped file is "r", "r+", "w+" or "c", not {mode!r}')
    if offset < 0:
        raise ValueError(f"an offset of {offset} bytes is before the file")
    if shape is None and mode == "w+":
        raise ValueError('mode "w+" makes the file, and needs a shape to know how long')
    # Raises where the manager can't be used, before anything happens to the file.
    manager.stats()
    if shape is not None:
        shape = _shape(shape)
        _make_long_enough(path, mode, offset + math.prod(shape) * dtype.itemsize)
    else:
        size = os.path.getsize(path)
        count, rest = divmod(size - offset, dtype.itemsize)
        if rest or count < 0:
            raise ValueError(
                f"the {size} bytes of {path!r} from {offset} on are no whole number of elements of "
                f"{dtype.itemsize} bytes; give a shape, or another dtype or offset"
            )
        shape = (count,)
    # Only the array's part of the file; all of it for an array without bytes, which has no part.
    nbytes, first = math.prod(shape) * dtype.itemsize, offset - offset % PAGE
    part = {"offset": first, "nbytes": offset - first + nbytes} if nbytes else {}
    if mode == "c":
        memory = manager.private_file(path, buffered=buffered, **part)
    else:
        memory = manager.file(path, writable=mode != "r", buffered=buffered, **part)
    view = np.asarray(memory._view())
    return np.ndarray.__new__(MappedArray, shape, dtype, view, offset - first if nbytes else 0, order=order)


def _make_long_enough(path, mode, nbytes):
    if mode == "w+":
        with open(path, "wb") as file:
            file.truncate(nbytes)
    elif (size := os.path.getsize(path)) < nbytes:
        if mode in ("r", "c"):
            raise ValueError(f"{path!r} has {size} bytes, and the array takes {nbytes}; give a smaller shape or offset")
        os.truncate(path, nbytes)


def _address(array):
    return array.__array_interface__["data"][0]


def part(region: Region, array):
    """The offset and length in bytes of the range from an array's first element to its last."""
    reach = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    first = _address(array) + sum(min(0, step) for step in reach)
    end = _address(array) + sum(max(0, step) for step in reach) + array.itemsize
    return first - _address(np.asarray(region._view())), end - first if array.size else 0


__all__ = ["MappedArray", "array", "empty", "memmap", "part", "restored"]
