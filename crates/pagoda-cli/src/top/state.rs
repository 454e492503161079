//! The user's choices: order, filter, selection, whether the picture stands still. Pure.
//!
//! This module must never look at a tree: it arranges its arguments.

use std::path::PathBuf;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::columns::COLUMNS;
use super::rows::{Group, Row};

/// Longer than any name of a process.
const FILTER_CHARS_MAX: usize = 32;

/// The choices.
#[derive(Debug)]
pub struct State {
    /// Of [`COLUMNS`].
    pub sort: usize,
    pub descending: bool,
    /// Members whose name has this, or whose number begins with it.
    pub filter: String,
    /// Whether keys go to the filter.
    pub typing: bool,
    pub frozen: bool,
    selected: Option<Key>,
}

/// The line in any order: the tree's file, the process, and a region's address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key(PathBuf, Option<u32>, Option<u64>);

/// A key's request to the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Nothing,
    Quit,
}

/// A line of the table.
#[derive(Debug)]
pub struct Line<'a> {
    pub group: &'a Group,
    /// The tree's own, a member's, or a region's.
    pub row: &'a Row,
    pub is_tree: bool,
}

impl Line<'_> {
    fn key(&self) -> Key {
        let pid = (!self.is_tree).then_some(self.row.pid);
        Key(self.group.file.clone(), pid, self.row.region.map(|region| region.start))
    }
}

impl Default for State {
    fn default() -> Self {
        let anon = COLUMNS.iter().position(|column| column.title == "ANON").unwrap_or(0);
        Self {
            sort: anon,
            descending: true,
            filter: String::new(),
            typing: false,
            frozen: false,
            selected: None,
        }
    }
}

impl State {
    /// Trees in order, the members and then the regions of each in order below it; a tree without a
    /// member that passes the filter is left out.
    pub fn arrange<'a>(&self, groups: &'a [Group]) -> Vec<Line<'a>> {
        let passes =
            |row: &Row| row.name.contains(&self.filter) || row.pid.to_string().starts_with(&self.filter);
        let in_order = |one: &Row, other: &Row| {
            let column = &COLUMNS[self.sort];
            let order = column.of(one).order(&column.of(other));
            let start = |row: &Row| row.region.map(|region| region.start);
            // By number where equal, so that lines don't jump about.
            let number = one.pid.cmp(&other.pid).then(start(one).cmp(&start(other)));
            (if self.descending { order.reverse() } else { order }).then(number)
        };
        let mut groups: Vec<&Group> = groups.iter().collect();
        groups.sort_by(|one, other| in_order(&one.tree, &other.tree));
        let mut lines = Vec::new();
        for group in groups {
            // A filter that names a tree means all of it.
            let whole = passes(&group.tree);
            let passing = |rows: &'a [Row]| {
                let mut rows: Vec<&Row> = rows.iter().filter(|row| whole || passes(row)).collect();
                rows.sort_by(|one, other| in_order(one, other));
                rows
            };
            let below = [passing(&group.members), passing(&group.regions)].concat();
            if below.is_empty() && !whole {
                continue;
            }
            lines.push(Line { group, row: &group.tree, is_tree: true });
            lines.extend(below.into_iter().map(|row| Line { group, row, is_tree: false }));
        }
        lines
    }

    /// The selected line: the first, if the one that was selected is gone.
    pub fn selected(&self, lines: &[Line]) -> usize {
        lines.iter().position(|line| Some(line.key()) == self.selected).unwrap_or(0)
    }

    /// One key, with the lines as they are shown.
    pub fn key(&mut self, key: KeyEvent, lines: &[Line]) -> Asked {
        if key.kind == KeyEventKind::Release {
            return Asked::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Asked::Quit } else { Asked::Nothing };
        }
        if self.typing {
            self.type_filter(key.code);
            return Asked::Nothing;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Asked::Quit,
            KeyCode::Char('s') | KeyCode::Right => self.sort = (self.sort + 1) % COLUMNS.len(),
            KeyCode::Char('S') | KeyCode::Left => self.sort = (self.sort + COLUMNS.len() - 1) % COLUMNS.len(),
            KeyCode::Char('r') => self.descending = !self.descending,
            KeyCode::Char('f' | ' ') => self.frozen = !self.frozen,
            KeyCode::Char('/') => {
                self.filter.clear();
                self.typing = true;
            }
            KeyCode::Down | KeyCode::Char('j') => self.select(lines, |at| at.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.select(lines, |at| at.saturating_sub(1)),
            KeyCode::PageDown => self.select(lines, |at| at.saturating_add(10)),
            KeyCode::PageUp => self.select(lines, |at| at.saturating_sub(10)),
            KeyCode::Home => self.select(lines, |_| 0),
            KeyCode::End => self.select(lines, |_| usize::MAX),
            _ => {}
        }
        Asked::Nothing
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.typing = false;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(char) if self.filter.chars().count() < FILTER_CHARS_MAX => self.filter.push(char),
            _ => {}
        }
    }

    fn select(&mut self, lines: &[Line], to: impl Fn(usize) -> usize) {
        let at = to(self.selected(lines)).min(lines.len().saturating_sub(1));
        self.selected = lines.get(at).map(Line::key);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::Region;
    use super::*;

    fn row(pid: u32, name: &str, anon_bytes: u64) -> Row {
        Row { pid, name: name.to_owned(), anon_bytes, ..Row::default() }
    }

    fn trees() -> Vec<Group> {
        let group = |tree: Row, members| {
            let file = format!("/run/pagoda-{}-1-0", tree.pid).into();
            Group { tree, members, file, ..Group::default() }
        };
        vec![
            group(row(10, "make", 30), vec![row(11, "make", 5), row(12, "cc1", 20), row(13, "cc1", 20)]),
            group(row(20, "sort", 90), vec![row(21, "sort", 90)]),
        ]
    }

    fn shown(state: &State) -> Vec<u32> {
        state.arrange(&trees()).iter().map(|line| line.row.pid).collect()
    }

    fn press(state: &mut State, keys: &[KeyCode]) -> Asked {
        let trees = trees();
        keys.iter().fold(Asked::Nothing, |_, code| {
            let lines = state.arrange(&trees);
            state.key(KeyEvent::from(*code), &lines)
        })
    }

    #[test]
    fn trees_and_their_members_are_in_the_chosen_order() {
        let mut state = State::default();
        assert_eq!(shown(&state), [20, 21, 10, 12, 13, 11], "most memory first, equals by number");
        press(&mut state, &[KeyCode::Char('r')]);
        assert_eq!(shown(&state), [10, 11, 12, 13, 20, 21]);
        state.sort = 1;
        assert_eq!(shown(&state), [10, 12, 13, 11, 20, 21], "by name");
        press(&mut state, &[KeyCode::Char('S'), KeyCode::Char('S')]);
        assert_eq!(state.sort, COLUMNS.len() - 1);
        press(&mut state, &[KeyCode::Char('s')]);
        assert_eq!(state.sort, 0);
    }

    #[test]
    fn a_filter_keeps_members_by_name_and_number_and_whole_trees_by_theirs() {
        let mut state = State::default();
        let typed = |text: &str| text.chars().map(KeyCode::Char).collect::<Vec<_>>();
        for (filter, pids) in
            [("/cc1", &[10, 12, 13][..]), ("/21", &[20, 21]), ("/make", &[10, 12, 13, 11]), ("/nobody", &[])]
        {
            press(&mut state, &typed(filter));
            assert!(state.typing);
            press(&mut state, &[KeyCode::Enter]);
            assert_eq!((shown(&state).as_slice(), state.typing), (pids, false), "{filter}");
        }
        assert_eq!(press(&mut state, &typed("/q")), Asked::Nothing, "q is a letter there");
        press(&mut state, &[KeyCode::Backspace, KeyCode::Esc]);
        assert_eq!((shown(&state).len(), state.filter.as_str()), (6, ""));
        press(&mut state, &typed(&format!("/{}", "x".repeat(99))));
        assert_eq!(state.filter.len(), FILTER_CHARS_MAX);
    }

    #[test]
    fn the_selection_follows_its_process_and_stops_at_both_ends() {
        let (mut state, trees) = (State::default(), trees());
        let selected = |state: &State| {
            let lines = state.arrange(&trees);
            lines[state.selected(&lines)].row.pid
        };
        press(&mut state, &[KeyCode::Up, KeyCode::Down, KeyCode::Down]);
        assert_eq!(selected(&state), 10);
        press(&mut state, &[KeyCode::Char('r')]);
        assert_eq!(selected(&state), 10, "it moved with its line");
        press(&mut state, &[KeyCode::End, KeyCode::Down]);
        assert_eq!(selected(&state), 21);
        press(&mut state, &[KeyCode::PageUp]);
        assert_eq!(selected(&state), 10);
        assert_eq!(state.selected(&[]), 0);
        state.key(KeyEvent::from(KeyCode::Down), &[]);
    }

    #[test]
    fn the_process_of_a_library_and_its_regions_are_lines_of_their_own() {
        let region = |start, held_bytes| Row {
            region: Some(Region { start, ..Region::default() }),
            held_bytes,
            ..row(30, &format!("{start:#x}"), 0)
        };
        // Two managers of one process.
        let group = |file: &str, regions| Group {
            tree: row(30, "vmm", 50),
            members: vec![row(30, "vmm", 50)],
            regions,
            file: file.into(),
            ..Group::default()
        };
        let groups = [group("one", vec![region(4096, 1), region(8192, 2)]), group("other", Vec::new())];
        let held = COLUMNS.iter().position(|column| column.title == "HELD").expect("a column");
        let mut state = State { sort: held, ..State::default() };
        let names = |state: &State| {
            state.arrange(&groups).iter().map(|line| line.row.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&state), ["vmm", "vmm", "0x2000", "0x1000", "vmm", "vmm"]);
        for at in 0..6 {
            assert_eq!(state.selected(&state.arrange(&groups)), at, "every line is come to");
            let lines = state.arrange(&groups);
            state.key(KeyEvent::from(KeyCode::Down), &lines);
        }
        state.filter = "0x2".to_owned();
        assert_eq!(names(&state), ["vmm", "0x2000"]);
    }

    #[test]
    fn q_escape_and_control_c_quit_and_f_freezes() {
        let mut state = State::default();
        assert_eq!(press(&mut state, &[KeyCode::Char('q')]), Asked::Quit);
        assert_eq!(press(&mut state, &[KeyCode::Esc]), Asked::Quit);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        state.typing = true;
        assert_eq!(state.key(control_c, &[]), Asked::Quit);
        state.typing = false;
        press(&mut state, &[KeyCode::Char('f')]);
        assert!(state.frozen);
        press(&mut state, &[KeyCode::Char(' ')]);
        assert!(!state.frozen);
    }
}
