"""The Python of the book and of the READMEs runs, and prints what stands below it.

A page whose cells have their output below them is one session, from its first cell to its last. Cells of other pages are
parts of programs: each runs by itself, with the names that such a program would have.
"""

import ast
import contextlib
import io
import os
import pathlib
import re

import numpy as np
import pytest
from conftest import is_direct

import pagoda

ROOT = pathlib.Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SESSION = "docs/notebook.md"


def blocks(page):
    return BLOCK.findall((ROOT / page).read_text())


def has_python(page):
    return any(language == "python" for language, _ in blocks(page))


PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("crates/*/README.md")]
    if has_python(page.relative_to(ROOT))
)


def run(cell, names):
    """What a cell prints. As in a notebook, a last line that is an expression is printed, too."""
    tree, printed = ast.parse(cell), io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            if value is not None:
                print(value)
    return printed.getvalue()


@pytest.fixture
def where(disk, monkeypatch):
    """A directory on a disk with direct I/O, in which the cells run."""
    if not is_direct(disk):
        pytest.skip("files of the book's cells need direct I/O")
    monkeypatch.chdir(disk)
    return disk


def test_the_notebook_prints_what_stands_below_its_cells(where):
    names, cells = {}, blocks(SESSION)
    assert [language for language, _ in cells] == ["python", "text"] * (len(cells) // 2)
    for (_, cell), (_, expected) in zip(cells[::2], cells[1::2], strict=True):
        assert run(cell, names) == expected, cell


@pytest.mark.parametrize("page", [page for page in PAGES if page != SESSION])
def test_each_cell_runs_by_itself(page, where):
    with open("rows.bin", "wb") as file:
        file.truncate(1_000_000 * 1024 * 4)
    os.link("rows.bin", "table.bin")
    for cell in (text for language, text in blocks(page) if language == "python"):
        with pagoda.Manager("64M") as m, open("rows.bin", "rb", buffering=0) as file:
            names = {"pagoda": pagoda, "np": np, "m": m, "a": m.zeros(100_000), "file": file}
            # An array of 3 GiB is summed up there, which takes a quarter of a minute.
            run(cell.replace("200_000", "2_000"), names)
            names.clear()


def test_the_pages_with_python_are_found():
    assert {SESSION, "docs/python.md", "crates/pagoda-python/README.md"} <= set(PAGES)
