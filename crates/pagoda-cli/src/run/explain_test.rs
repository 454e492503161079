//! Every row that the table can have is explained, and nothing else is.

use std::collections::BTreeSet;

use super::*;

/// The rows that the sources of both tables make: the first argument of what adds a row.
fn made() -> BTreeSet<String> {
    let source = concat!(include_str!("table.rs"), include_str!("kernel/report.rs"));
    let calls = ["table.row(", "table.count(", "table.size("].into_iter().flat_map(|call| {
        source.split(call).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
    });
    calls.map(str::to_owned).collect()
}

#[test]
fn every_row_of_the_table_is_explained_once() {
    let explained: BTreeSet<String> = ROWS.iter().map(|(name, ..)| (*name).to_owned()).collect();
    assert_eq!(explained, made());
    assert_eq!(explained.len(), ROWS.len());
}

#[test]
fn a_table_has_its_own_rows_explained_in_lines_that_fit() {
    let table = "pagoda: sort, exit status 0, 1.00 s\n  budget           64 MiB  base page 64 KiB\n  \
                 zones' ages        2.00  times as old\n  own           1 MiB  tables\n";
    let text = explain(Some(table));
    assert!(text.contains("\n  budget  ") && text.contains("\n  zones' ages  "), "{text}");
    assert!(!text.contains("spilled peak"), "{text}");
    let all = explain(None);
    assert!(all.contains("-> raise --memory to the size that the row names"), "{all}");
    assert!(all.lines().all(|line| line.chars().count() <= 105), "{all}");
}
