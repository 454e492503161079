//! Engines that compile while they run: node and a Java virtual machine.

use super::{Program, Scratch, new, starts, text, written};

/// Objects, maps, strings and buffers outside the heap: made, changed and hashed.
const JAVASCRIPT: &str = r"
const crypto = require('crypto');
const groups = [];
let x = 1;
const next = () => (x = (Math.imul(x, 1103515245) + 12345) >>> 0);
for (let g = 0; g < 40; g++) {
  const group = { blocks: [], names: new Map() };
  for (let i = 0; i < 40; i++) {
    const block = Buffer.alloc(64 << 10, 'x' + next());
    for (let at = 0; at < block.length; at += 64) block.writeUInt32LE(next(), at);
    group.blocks.push(block);
  }
  for (let i = 0; i < 1000; i++) group.names.set('name ' + g + ' ' + i, { id: next(), text: 'text ' + next() });
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

pub fn node(scratch: &Scratch) -> Result<Program, String> {
    starts(&["node", "--version"])?;
    let script = written(scratch, "churn.js", JAVASCRIPT)?;
    // A small nursery: with a large one a quarter of the memory is a nursery and nothing else.
    Ok(new("node", ["node", "--max-semi-space-size=1", text(&script)]))
}

/// Objects of random sizes that replace each other, with most of them surviving.
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
        for (int i = 0; i < kept * 5 / 4; i++) {
            byte[] body = new byte[200 + random.nextInt(1200)];
            random.nextBytes(body);
            long key = random.nextInt(kept);
            Item old = live.put(key, new Item(i, "item " + i, body));
            if (old != null && i % 16 == 0) { digest.update(old.body()); digest.update(old.name().getBytes()); }
        }
        long sum = 0;
        for (Item item : live.values()) { sum += item.id(); digest.update(item.body()); }
        System.out.println(live.size() + " " + sum + " " + HexFormat.of().formatHex(digest.digest()));
    }
}
"#;

fn class(scratch: &Scratch) -> Result<String, String> {
    starts(&["java", "-version"])?;
    let source = written(scratch, "Churn.java", JAVA)?;
    starts(&["javac", "-d", text(&scratch.path("")), text(&source)])?;
    Ok(text(&scratch.path("")).to_owned())
}

/// A heap that is far larger than the budget.
pub fn java(scratch: &Scratch) -> Result<Program, String> {
    let classes = class(scratch)?;
    Ok(new(
        "java",
        ["java", "-XX:+UseG1GC", "-Xms64m", "-Xmx256m", "-Xmn12m", "-cp", &classes, "Churn", "80000"],
    ))
}

/// A heap that the budget holds: the rest is the machine's own.
pub fn java_small_heap(scratch: &Scratch) -> Result<Program, String> {
    let classes = class(scratch)?;
    let mut program = new(
        "java-small-heap",
        ["java", "-XX:+UseSerialGC", "-Xms32m", "-Xmx32m", "-cp", &classes, "Churn", "8000"],
    );
    program.native_peak_bytes_min = 32 << 20;
    Ok(program)
}
