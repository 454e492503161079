# Objects that replace each other in a dictionary, then every one of them read in the order of its key.
import hashlib
import random

draw = random.Random(1)
live = {}
for i in range(700000):
    key = draw.randrange(400000)
    live[key] = [draw.random() for _ in range(4)] + [str(i) * 6]
    if i % 400 == 0:
        live[-1 - key % 64] = bytes(str(i), "ascii") * 50000
hash = hashlib.sha256()
for key in sorted(live):
    value = live[key]
    hash.update(value if isinstance(value, bytes) else repr(value).encode())
print(len(live), hash.hexdigest())
