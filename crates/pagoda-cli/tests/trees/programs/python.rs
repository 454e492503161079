//! Python with workers, by fork and by spawn, and with hundreds of short processes.

use super::{Program, Scratch, new, python, text, written};

fn interpreter() -> Result<String, String> {
    python("multiprocessing")
}

/// Workers read inherited or received records, beside records of their own.
const WORKERS: &str = r"
import hashlib, multiprocessing, sys
def made(seed, count):
    records, x = [], seed
    for i in range(count):
        x = (x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        records.append([x >> 40, str(x) * 4, {'i': i, 'x': x}])
    return records
def told(records):
    digest = hashlib.sha256()
    for record in records:
        digest.update(('%d %s %d' % (record[0], record[1], record[2]['i'])).encode())
    return digest.hexdigest()
inherited = []
def work(seed):
    own = made(seed, 60000)
    part = inherited[seed % 4::4]
    for record in part: record[2]['i'] += seed
    own.sort(key=lambda record: (record[2]['i'] // 500, record[0]))
    result = seed, told(own), told(part), len(part)
    # Which worker comes next to this part is chance: it finds it as it was.
    for record in part: record[2]['i'] -= seed
    return result
if __name__ == '__main__':
    method = sys.argv[1]
    if method == 'fork': inherited = made(99, 120000)
    kept = made(5, 60000)
    context = multiprocessing.get_context(method)
    for _ in range(2):
        with context.Pool(3) as pool:
            for result in pool.imap(work, range(1, 7)): print(*result)
        print(told(kept), told(inherited))
";

fn workers(name: &'static str, method: &str, scratch: &Scratch) -> Result<Program, String> {
    let script = written(scratch, "workers.py", WORKERS)?;
    let mut program = new(name, [&interpreter()?, text(&script), method]);
    program.environment.push(("PYTHONHASHSEED", "0"));
    Ok(program)
}

pub fn fork(scratch: &Scratch) -> Result<Program, String> {
    workers("python-fork", "fork", scratch)
}

pub fn spawn(scratch: &Scratch) -> Result<Program, String> {
    workers("python-spawn", "spawn", scratch)
}

/// Hundreds of processes out of one that holds much: by vfork, and some by fork.
const STORM: &str = r"
import hashlib, os, subprocess, threading
kept, x = [], 1
for i in range(400000):
    x = (x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
    kept.append((x, str(x) * 6))
def told(part):
    digest = hashlib.sha256()
    for number, text in kept[part * 25000:(part + 1) * 25000]: digest.update(b'%d' % number); digest.update(text.encode())
    return digest.hexdigest()
results = {}
def storm(seed):
    seen = []
    for i in range(100):
        out = subprocess.run(['/bin/sh', '-c', 'echo $0', str(seed * 1000 + i)], capture_output=True, check=True).stdout
        seen.append(out.decode().strip())
        if i % 25 == 0: seen.append(told((i // 25 * 4 + seed) % 16))
    results[seed] = hashlib.sha256(' '.join(seen).encode()).hexdigest()
threads = [threading.Thread(target=storm, args=(seed,)) for seed in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
for i in range(10):
    # The child looks at what it inherited, before anything else and without exec.
    pid = os.fork()
    if pid == 0:
        print(i, told(i), flush=True)
        os._exit(i)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == i
for seed in sorted(results): print(seed, results[seed])
print([told(part) for part in range(16)])
";

pub fn storm() -> Result<Program, String> {
    Ok(new("python-storm", [&interpreter()?, "-u", "-c", STORM]))
}
