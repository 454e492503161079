//! Shells and their children: hundreds of short processes, and a pipeline whose members all hold
//! much.

use super::{Program, new, starts};

/// Each turn is a handful of processes: substitutions, pipes, builtins in subshells.
const SCRIPT: &str = r#"
i=0
while [ $i -lt 120 ]; do
    word=$(printf 'line %s of the script' "$i" | tr a-z A-Z | cut -d' ' -f2-)
    sum=$(expr $i \* 7919 % 104729)
    echo "$i $word $sum $(echo $sum | sha256sum | cut -c1-16)"
    i=$((i + 1))
done | sort -n -k5 | tee /dev/null | awk '{ n += $5 } END { print NR, n }'
(exit 3) || echo "a subshell ended with $?"
sh -c 'kill -9 $$' 2>/dev/null; echo "a child was killed: $?"
"#;

pub fn script() -> Result<Program, String> {
    starts(&["sh", "-c", "echo | awk '{ print }' | sha256sum"])?;
    let mut program = new("shell-script", ["sh", "-c", SCRIPT]);
    program.native_peak_bytes_min = 0;
    Ok(program)
}

/// One database makes rows, `sort` orders them, and another takes them in and tells of them.
const PIPELINE: &str = r#"
sqlite3 -batch :memory: "
PRAGMA temp_store = MEMORY;
CREATE TABLE item(id INTEGER PRIMARY KEY, price INTEGER, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 249999)
INSERT INTO item SELECT i, (i * 7919) % 100003, printf('item-%08d-%s-%0120d', i, hex(i * 2654435761), i * 31) FROM n;
UPDATE item SET price = price + id % 13;
SELECT price, note, id FROM item;" |
sort -S 256M --parallel=2 -t '|' -k1,1n -k2,2r |
sqlite3 -batch :memory: "
PRAGMA temp_store = MEMORY;
CREATE TABLE taken(price INTEGER, note TEXT, id INTEGER);" ".import /dev/stdin taken" "
CREATE INDEX by_note ON taken(note);
SELECT count(*), sum(price), min(note), max(note) FROM taken;
SELECT price, note FROM taken WHERE rowid % 997 = 0;
SELECT substr(note, -3), count(*), sum(id) FROM taken GROUP BY 1 ORDER BY 1 LIMIT 50;"
"#;

pub fn sqlite() -> Result<Program, String> {
    starts(&["sqlite3", "--version"])?;
    starts(&["sort", "--version"])?;
    Ok(new("sqlite-pipe", ["sh", "-c", PIPELINE]))
}
