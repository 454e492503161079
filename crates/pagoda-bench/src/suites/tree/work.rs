//! The trees of processes that are timed from start to end, made on the spot.
//!
//! Never installs anything: a missing program is left out with a reason. Each prints a result that
//! tells right from wrong.

use crate::load::tools::{python, starts, words, write};
use crate::measure::scratch::Scratch;

/// The command line of a tree.
pub type Work = Vec<String>;

/// A process that holds `bytes` and forks: it prints the median time of a call in milliseconds.
pub fn fork(bytes: u64, rounds: u32) -> anyhow::Result<Work> {
    let script = format!(
        "
import mmap, os, statistics, time
memory = mmap.mmap(-1, {bytes}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block = os.urandom(1 << 16)
for at in range(0, len(memory), 1 << 16):
    memory[at:at + 8] = at.to_bytes(8, 'little')
    memory[at + 8:at + (1 << 16)] = block[8:]
times = []
for i in range({rounds}):
    begin = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        at = i * 7919 % (len(memory) >> 16) << 16
        os._exit(0 if int.from_bytes(memory[at:at + 8], 'little') == at else 1)
    times.append(time.perf_counter() - begin)
    assert os.waitpid(pid, 0)[1] == 0
assert all(int.from_bytes(memory[at:at + 8], 'little') == at for at in range(0, len(memory), 1 << 16))
print(statistics.median(times[1:]) * 1000)
"
    );
    let real = python()?;
    starts(&real)?;
    Ok(words(&[&real, "-c", &script]))
}

/// Short processes, one after another and in pipes.
pub fn spawn_storm(turns: u32) -> anyhow::Result<Work> {
    starts("tr")?;
    let script = format!(
        "i=0; while [ $i -lt {turns} ]; do echo line $i | tr a-z A-Z; /bin/true; (exit 0); i=$((i + 1)); done"
    );
    Ok(words(&["sh", "-c", &script]))
}

/// A build of four C++ files full of templates, or two, with two compilers at once, and the output
/// of the built program.
pub fn build(scratch: &Scratch, quick: bool) -> anyhow::Result<Work> {
    starts("g++")?;
    starts("make")?;
    let (units, instances) = if quick { (2, 1) } else { (4, 4) };
    let mut objects = String::new();
    let mut main = "#include <cstdio>\n".to_owned();
    let mut sum = String::new();
    for unit in 0..units {
        let mut source = TEMPLATES.to_owned();
        source += &format!("long unit{unit}(long seed) {{ long sum = 0;\n");
        for n in 0..instances {
            source += &format!("  sum = sum * 131 + work<{}>(seed + {n});\n", unit * 10 + n);
        }
        write(scratch, &format!("unit{unit}.cpp"), &(source + "  return sum;\n}\n"))?;
        objects += &format!(" unit{unit}.o");
        main += &format!("long unit{unit}(long);\n");
        sum += &format!(" + unit{unit}({unit})");
    }
    write(scratch, "main.cpp", &(main + &format!("int main() {{ std::printf(\"%ld\\n\", 0{sum}); }}\n")))?;
    let rules =
        format!("built: main.o{objects}\n\tg++ -o $@ $^\n%.o: %.cpp\n\tg++ -std=c++17 -O1 -c -o $@ $<\n");
    let makefile = write(scratch, "Makefile", &rules)?;
    let directory = makefile.trim_end_matches("/Makefile").to_owned();
    let script = "cd \"$0\" && rm -f built *.o && make -s -j2 && ./built";
    Ok(words(&["sh", "-c", script, &directory]))
}

const TEMPLATES: &str = r#"
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>
template <int N> struct Tag { int value = N; bool operator<(const Tag &o) const { return value < o.value; } };
template <int N> long work(long seed) {
  std::map<std::pair<Tag<N>, long>, std::vector<std::tuple<long, std::string, Tag<N>>>> table;
  std::unordered_map<std::string, std::variant<long, std::string, Tag<N>>> named;
  for (long i = 0; i < 40 + N % 3; i++) {
    table[{Tag<N>{}, i % 7}].emplace_back(i * seed, std::to_string(i), Tag<N>{});
    named["n" + std::to_string(i)] = i % 2 ? std::variant<long, std::string, Tag<N>>(i) : std::to_string(i);
  }
  long sum = N;
  for (auto &[key, list] : table) {
    std::sort(list.begin(), list.end(), [](auto &a, auto &b) { return std::get<1>(a) < std::get<1>(b); });
    for (auto &entry : list) sum = (sum * 31 + std::get<0>(entry) + std::get<1>(entry).size()) % 1000003;
  }
  std::function<long(long)> f = [&](long n) { return n < 2 ? n : f(n - 1) + f(n - 2); };
  return sum + f(8) + named.size();
}
"#;

/// Objects that replace each other under the G1 collector.
pub fn jvm(scratch: &Scratch, quick: bool) -> anyhow::Result<Work> {
    starts("java")?;
    let source = write(scratch, "Churn.java", JAVA)?;
    let kept = if quick { "5000" } else { "60000" };
    // From the source, so that a runtime without a compiler leaves the reason for its absence.
    Ok(words(&["java", "-XX:+UseG1GC", "-Xms64m", "-Xmx256m", &source, kept]))
}

const JAVA: &str = r#"
import java.security.MessageDigest;
import java.util.*;
public class Churn {
    record Item(long id, String name, byte[] body) {}
    public static void main(String[] arguments) throws Exception {
        int kept = Integer.parseInt(arguments[0]);
        Random random = new Random(7);
        Map<Long, Item> live = new TreeMap<>();
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (int i = 0; i < kept * 4; i++) {
            byte[] body = new byte[200 + random.nextInt(1200)];
            random.nextBytes(body);
            long key = random.nextInt(kept);
            Item old = live.put(key, new Item(i, "item " + i, body));
            if (old != null && i % 16 == 0) { digest.update(old.body()); digest.update(old.name().getBytes()); }
        }
        for (Item item : live.values()) digest.update(item.body());
        System.out.println(live.size() + " " + HexFormat.of().formatHex(digest.digest()));
    }
}
"#;

/// Objects, maps, strings and buffers outside the heap.
pub fn node(scratch: &Scratch, quick: bool) -> anyhow::Result<Work> {
    starts("node")?;
    let script = write(scratch, "churn.js", JAVASCRIPT)?;
    Ok(words(&["node", &script, if quick { "30" } else { "120" }]))
}

const JAVASCRIPT: &str = r"
const crypto = require('crypto');
const groups = [];
let x = 1;
const next = () => (x = (Math.imul(x, 1103515245) + 12345) >>> 0);
for (let g = 0; g < Number(process.argv[2]); g++) {
  const group = { blocks: [], names: new Map() };
  for (let i = 0; i < 8; i++) {
    const block = Buffer.alloc(64 << 10, 'x' + next());
    for (let at = 0; at < block.length; at += 64) block.writeUInt32LE(next(), at);
    group.blocks.push(block);
  }
  for (let i = 0; i < 3000; i++) group.names.set('name ' + g + ' ' + i, { id: next(), text: 'text ' + next() });
  groups.push(group);
}
for (let pass = 0; pass < 2; pass++) {
  const all = crypto.createHash('sha256');
  for (const group of groups) {
    const hash = crypto.createHash('sha256');
    for (const block of group.blocks) { hash.update(block); block.writeUInt32LE(next(), 8); }
    for (const [name, value] of group.names) hash.update(name + value.id + value.text);
    all.update(hash.digest());
  }
  console.log(pass, all.digest('hex'));
}
";
