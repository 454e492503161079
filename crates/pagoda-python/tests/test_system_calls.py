"""System calls that are handed an array whose pages are swapped out, in each mode."""

import errno
import os
import socket
import tempfile

import numpy as np
import pytest
from conftest import content, make

import pagoda


def swapped_out(manager, expected):
    array = manager.array(expected)
    pagoda.region_of(array).page_out()
    return array


def test_in_the_default_mode_they_work_as_on_any_memory():
    expected = content(1 << 18)
    with make("full") as manager, tempfile.TemporaryFile(buffering=0) as file:
        array = swapped_out(manager, expected)
        assert file.write(array) == array.nbytes
        array[:] = 0
        pagoda.region_of(array).page_out()
        file.seek(0)
        assert file.readinto(array) == array.nbytes and np.array_equal(array, expected)
        pagoda.region_of(array).page_out()
        with tempfile.NamedTemporaryFile() as named:
            array.tofile(named.name)
            assert np.array_equal(np.fromfile(named.name), expected)
        pagoda.region_of(array).page_out()
        ours, theirs = socket.socketpair()
        sent = ours.send(array[:1024])
        assert theirs.recv(sent) == expected[:1024].tobytes()[:sent]
        ours.close()
        theirs.close()
        del array


@pytest.mark.parametrize("mode", ["user", "thread"])
def test_in_user_mode_they_fail_unless_the_array_is_pinned(mode):
    expected = content(1 << 18)
    with make(mode) as manager, tempfile.TemporaryFile(buffering=0) as file:
        assert manager.user_mode_only
        array = swapped_out(manager, expected)
        with pytest.raises(OSError) as refused:
            file.write(array)
        assert refused.value.errno == errno.EFAULT
        with pagoda.pinned(array):
            assert file.write(array) == array.nbytes
        file.seek(0)
        assert np.array_equal(np.frombuffer(file.read()), expected)
        del array


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without the right")
def test_without_the_right_the_default_mode_names_user_mode(tmp_path):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            try:
                pagoda.Manager("32M")
                text = "made"
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(tell, text.encode())
        finally:
            os._exit(0)
    os.close(tell)
    with open(told) as file:
        text = file.read()
    assert os.waitpid(child, 0)[1] == 0
    if text != "made":  # vm.unprivileged_userfaultfd allows it to all
        assert text.startswith("PermissionError: ") or "pagemap" in text, text
        assert "user_mode_only=True" in text or "pagemap" in text, text
