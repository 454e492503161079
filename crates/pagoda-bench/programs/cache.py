# Fills a cache server of its own, reads everything back in another order, and checks each byte.
# Usage: cache.py redis|memcached PROGRAM VALUES. It ends as the server does where that is ended by a signal.
import random
import signal
import socket
import subprocess
import sys
import time

BYTES, BATCH = 4000, 100
kind, program, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
options = {
    "redis": ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
    "memcached": ["-p", str(port), "-U", "0", "-l", "127.0.0.1", "-m", "4096", "-t", "2", "-u", "root"],
}
quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
server = subprocess.Popen([program, *options[kind]], **quiet)


def connect():
    begun = time.monotonic()
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if server.poll() is not None or time.monotonic() - begun > 10:
                raise
            time.sleep(0.01)


def value(i):
    # A part that no codec makes smaller, and a part that one does.
    text = b"%d of the values, " % i
    return random.Random(i).randbytes(BYTES // 3) + (text * (BYTES // len(text) + 1))[: BYTES - BYTES // 3]


def fill(keys):
    if kind == "redis":
        stream.write(b"".join(b"*3\r\n$3\r\nSET\r\n$8\r\n%08d\r\n$%d\r\n%b\r\n" % (i, BYTES, value(i)) for i in keys))
    else:
        stream.write(b"".join(b"set %08d 0 0 %d\r\n%b\r\n" % (i, BYTES, value(i)) for i in keys))
    stream.flush()
    return sum(stream.readline() not in (b"+OK\r\n", b"STORED\r\n") for _ in keys)


def read(keys):
    if kind == "redis":
        stream.write(b"".join(b"*2\r\n$3\r\nGET\r\n$8\r\n%08d\r\n" % i for i in keys))
    else:
        stream.write(b"".join(b"get %08d\r\n" % i for i in keys))
    stream.flush()
    wrong = 0
    for i in keys:
        head = stream.readline()
        wrong += head != (b"$%d\r\n" % BYTES if kind == "redis" else b"VALUE %08d 0 %d\r\n" % (i, BYTES))
        wrong += stream.read(BYTES + 2)[:-2] != value(i)
        if kind == "memcached":
            wrong += stream.readline() != b"END\r\n"
    return wrong


try:
    stream = connect().makefile("rwb", 1 << 20)
    order = list(range(count))
    failed = sum(fill(order[at : at + BATCH]) for at in range(0, count, BATCH))
    random.Random(2).shuffle(order)
    wrong = sum(read(order[at : at + BATCH]) for at in range(0, count, BATCH))
    print(kind, count, "values,", failed, "not stored,", wrong, "wrong")
finally:
    try:
        server.wait(0.1)
    except subprocess.TimeoutExpired:
        server.terminate()
        server.wait()
    if server.returncode < 0 and server.returncode != -signal.SIGTERM:
        sys.exit(128 - server.returncode)
