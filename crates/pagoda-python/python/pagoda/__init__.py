"""NumPy arrays larger than memory, within a memory budget.

>>> import pagoda
>>> with pagoda.Manager("1G", spill_to="/var/tmp", spill_limit="20G") as m:   # doctest: +SKIP
...     a = m.zeros((200_000, 4096), "float32")        # 3 GiB, in 1 GiB of memory and a file
...     a[:, 0] = 1
...     print(a.sum(), m)
...     del a

A `Manager` has a budget. Its arrays are ordinary `numpy.ndarray`s. Cold pages of them are compressed within the
budget, and spilled to a file if one is named. An access to such a page swaps it in. Sizes are numbers
of bytes, or text as the `pagoda` command takes it: ``"512M"``, ``"1G"`` (binary).

NumPy is imported when the first array is made, and is needed for nothing else.
"""

import atexit as _atexit
import os as _os

from . import _pagoda
from ._manager import Manager, pinned, region_of
from ._pagoda import File, Pin, Region

__all__ = ["File", "Manager", "Pin", "Region", "pinned", "region_of"]

# Before later hooks of a child map anything, which could be where its parent's arrays are.
_os.register_at_fork(after_in_child=_pagoda.forked)
_atexit.register(_pagoda.flush_all)
