use super::*;

fn header(events: u64) -> Header {
    let command = vec!["sort".to_owned(), "a \"b\"\n".to_owned()];
    Header { events, processes: vec![7, 8], ..Header::new(command, 64 << 20, 64 << 10, 2_000_000) }
}

fn events() -> Vec<Event> {
    let fault = |kind| What::Fault { kind, took_ns: 4_607 };
    let whats = FaultKind::ALL.map(fault).into_iter().chain([What::Eviction]);
    let event = |(at, what): (u64, What)| Event {
        time_us: at * 10,
        pid: 7,
        what,
        address: (1 << 56) + (at << 12),
        bytes: 4096,
    };
    (0..).zip(whats).map(event).collect()
}

fn written(text: &[u8]) -> Result<Trace, String> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("trace");
    std::fs::write(&path, text).expect("written");
    read(&path).map_err(|refusal| refusal.to_string())
}

#[test]
fn a_trace_comes_back_as_it_was_written_each_event_in_a_line() {
    let (header, events) = (header(7), events());
    let mut text = Vec::new();
    write(&mut text, &header, events.iter().copied()).expect("written");
    let trace = written(&text).expect("a trace");
    let lines: Vec<Line> = events.iter().map(Line::from).collect();
    assert_eq!(trace, Trace { header, lines });
    let text = String::from_utf8(text).expect("text");
    let shown: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(shown[3], "[30,7,\"stored\",72057594037940224,4096,4.607]");
    assert_eq!(shown[6], "[60,7,\"eviction\",72057594037952512,4096,null]");
    let kinds = FaultKind::ALL.iter().map(|kind| kind.name());
    for (line, kind) in trace.lines.iter().zip(kinds) {
        assert_eq!(line.2.fault().map(FaultKind::name), Some(kind));
    }
}

#[test]
fn a_file_of_no_trace_is_refused_with_its_line() {
    let first = |header: &Header| serde_json::to_string(header).expect("JSON") + "\n";
    let other = Header { pagoda_trace: FORMAT + 1, ..header(0) };
    let swapped = Header { columns: vec!["pid".to_owned()], ..header(0) };
    let mut more = header(0);
    more.columns.push("colour".to_owned());
    for (text, says) in [
        (String::new(), "line 1: the file is empty"),
        ("{}\n".to_owned(), "line 1: missing field"),
        (first(&other), "line 1: it is of another version"),
        (first(&swapped), "line 1: it is of another version"),
        (first(&more), "line 1: it is of another version"),
        (first(&header(1)), "line 2: the file ends"),
        (first(&header(0)) + "[1,2,\"zero\",3,4,5.0]\n", "line 3: the file ends"),
        (first(&header(1)) + "[1,2,\"colour\",3,4,5.0]\n", "line 2: unknown variant"),
        (first(&header(1)) + "[1,2]\n", "line 2: "),
    ] {
        let why = written(text.as_bytes()).expect_err(says);
        assert!(why.contains(says) && why.contains("`pagoda run --trace` wrote"), "{why}");
    }
    assert!(written(&[0xff, 0xfe]).is_err());
    assert!(read(Path::new("/nonexistent/trace")).is_err());
}
