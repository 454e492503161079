"""The manager, and functions that find the memory of an array.

Nothing here imports NumPy before an array is asked for.
"""

from __future__ import annotations

import importlib
import os
from typing import IO, TYPE_CHECKING, Any, Literal

from . import _pagoda
from ._pagoda import File, Pin, Region

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from ._arrays import MappedArray

Shape = int | tuple[int, ...]


def _arrays() -> Any:
    try:
        return importlib.import_module("pagoda._arrays")
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise ModuleNotFoundError(
            "arrays need NumPy, which is not installed; pip install numpy, or use Manager.region and Manager.file, "
            "which support the buffer protocol",
            name="numpy",
        ) from None


class Manager(_pagoda.Manager):
    """Memory within a budget. Makes arrays, regions and files.

    Parameters
    ----------
    budget : int or str
        The most memory that its arrays and their compressed pages take: bytes, or text like ``"1G"``. It does not
        cover the rest of the process. At least 32 MiB.
    user_mode_only : bool
        Serve faults of the program's own code only, which needs no privilege. A system call that is handed an array
        (``file.readinto(a)``, ``a.tofile``, ``socket.send(a)``) then fails with EFAULT where a page of it is swapped
        out; `pinned` keeps a part in memory for one.
    serve_in_thread : bool
        Serve each fault in the thread that has it, by a handler of SIGBUS, without waking another thread
        (``bench/gil.py`` measures both ways). System calls fail as with `user_mode_only`, which it implies. Nothing else may
        install a handler of SIGBUS afterwards, as ``faulthandler.enable()`` does.
    spill_to : path, optional
        A directory on a disk, where pages that don't fit compressed go to an unlinked file, encrypted. Without it
        the budget is exceeded, with a `RuntimeWarning`, where nothing more can be compressed into it.
    spill_limit : int or str, optional
        The most bytes of that file. Given together with `spill_to`.
    publish : bool
        Show the manager in ``pagoda top``.

    Raises
    ------
    PermissionError
        This process may not have the faults of system calls. `user_mode_only` does without.
    OSError, RuntimeError
        It could not start; the message says why.
    ValueError
        A size can't be read.

    Notes
    -----
    Leaving a ``with`` block closes the manager, and raises `BufferError` as long as arrays are alive: ``del`` them
    before. The handles are of the process that made them. A child of ``os.fork`` has none of the memory, its calls
    raise `RuntimeError`, and a touch of an array ends it (SIGSEGV) with a line that says why. It may make a manager
    of its own.
    """

    def empty(
        self, shape: Shape, dtype: DTypeLike = "float64", *, order: Literal["C", "F"] = "C"
    ) -> NDArray[Any]:
        """An array that reads as zero, and takes no memory until it is written.

        `shape` is in elements, of `dtype` each. Object arrays are refused: they hold references, which the garbage
        collector would have to look at. The memory is freed with the last view of it; `region_of` gives its region.
        Blocks for no longer than mapping takes.
        """
        return _arrays().empty(self, shape, dtype, order)

    def zeros(
        self, shape: Shape, dtype: DTypeLike = "float64", *, order: Literal["C", "F"] = "C"
    ) -> NDArray[Any]:
        """The same as `empty`: fresh memory is zero."""
        return _arrays().empty(self, shape, dtype, order)

    def array(
        self, obj: ArrayLike, dtype: DTypeLike | None = None, *, order: Literal["C", "F"] = "C"
    ) -> NDArray[Any]:
        """A copy of `obj`, which is anything that `numpy.asarray` takes, in memory of this manager.

        The GIL is released while it is copied, unless `obj` first has to become an array.
        """
        return _arrays().array(self, obj, dtype, order)

    def memmap(
        self,
        path: str | os.PathLike[str] | IO[Any],
        dtype: DTypeLike = "uint8",
        shape: Shape | None = None,
        mode: Literal["r", "r+", "w+", "c"] = "r+",
        *,
        offset: int = 0,
        order: Literal["C", "F"] = "C",
        buffered: bool = False,
    ) -> MappedArray:
        """An array that is a file, as `numpy.memmap`, by a page cache within the budget.

        Parameters
        ----------
        path : path or file object
            A regular file, or an open one, which is opened anew for the mode and may be closed afterwards.
        dtype : dtype
            Of an element; bytes by default.
        shape : int or tuple of int, optional
            In elements. Without it the array has one dimension, and goes to the end of the file.
        mode : {"r", "r+", "w+", "c"}
            Read; read and write; make or empty the file, and read and write; copy on write, where writes stay in
            the array and within the budget, and never reach the file. A file that is shorter than `shape` asks for
            is made longer, but for ``"r"`` and ``"c"``.
        offset : int
            Bytes before the array's first element. Only the array's part of the file is mapped.
        order : {"C", "F"}
            The layout of its elements.
        buffered : bool
            Go through the kernel's cache, which no budget covers: for file systems without direct I/O.

        Notes
        -----
        Writes are in the file after ``flush()``, after `close`, when memory gets short, and when the last view is
        gone or Python ends. A page that the disk can't read is SIGBUS, as with `numpy.memmap`. The file's other
        writers are noticed, and never overwritten: see "Files as memory" in the book's caveats.
        """
        return _arrays().memmap(self, path, dtype, shape, mode, offset, order, buffered)

    def snapshot(
        self,
        array: NDArray[Any],
        path: str | os.PathLike[str],
        base: str | os.PathLike[str] | None = None,
    ) -> dict[str, float]:
        """Saves the memory of `array` to an image at `path`, which it replaces when all is on disk.

        It is all of the memory that the array is a view of. Other threads of Python run meanwhile, but for a last
        moment, whose content it is: the result has its `pause_seconds`, and the image's `file_bytes`. The key of the
        image is in a file beside it (`path` with ``.key``). A native thread that writes without the GIL at that
        moment raises `RuntimeError`, and an image that was there stays.

        With a `base`, an image in the same directory with its key beside it, only blocks that differ from it take
        room, and the new image has the same key. After ``region_of(array).track_saves()`` a save whose base is the
        image of the last one reads only what was written or evicted since.
        """
        memory = region_of(array)
        if isinstance(memory, File):
            raise TypeError("the array is a mapped file; flush() makes it safe, and a copy of the file saves it")
        return memory.snapshot(path, base)

    def restore(
        self,
        path: str | os.PathLike[str],
        dtype: DTypeLike = "uint8",
        shape: Shape | None = None,
        *,
        order: Literal["C", "F"] = "C",
        prefetch: bool = True,
    ) -> NDArray[Any]:
        """An array with the content of the image at `path`, which `snapshot` or ``pagoda image pack`` made.

        Only the image's index is read now, and each page when it is touched; those of a recorded working set
        (``region_of(array).record_working_set()``) come ahead, unless `prefetch` is false. Writes stay in the array.
        Without a `shape` it has one dimension, and all of the image, rounded up to whole base pages, with zeroes.
        The image must not be written as long as the array lives; replacing it by another does no harm. A page that
        is damaged is SIGBUS.
        """
        return _arrays().restored(self, path, dtype, shape, order, prefetch)


def region_of(array: Any) -> Region | File:
    """The memory of an array, or of a view of one: a `Region`, or a `File`.

    Raises `TypeError` for an array that is in no manager's memory, as the result of an operation on one.
    """
    base = array
    while base is not None:
        if isinstance(base, _pagoda.View | memoryview):
            base = base.obj
        if isinstance(base, Region | File):
            return base
        base = getattr(base, "base", None)
    raise TypeError(f"this {type(array).__name__} is in no manager's memory; Manager.array makes a copy that is")


def pinned(array: NDArray[Any]) -> Pin:
    """Keeps an array in memory for a ``with`` block, so that system calls may use it in every mode.

    The whole range of bytes between its first and last element is pinned, and swapped in before. All pins of a
    manager together take a quarter of its budget at most, beyond which `BufferError` is raised. Memory of a file
    can't be pinned (`TypeError`): hand a copy to the system call.
    """
    region = region_of(array)
    if isinstance(region, File):
        raise TypeError("memory of a file can't be pinned; hand a copy of it to the system call")
    offset, length = _arrays().part(region, array)
    return region.pin(offset, length)
