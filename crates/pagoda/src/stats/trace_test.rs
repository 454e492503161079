use std::thread;

use super::*;

fn pair() -> (Trace, Tracer) {
    let trace = Trace::create().expect("made");
    let tracer = Tracer::open(&trace.path()).expect("opened");
    (trace, tracer)
}

#[test]
fn events_of_one_side_are_read_by_the_other() {
    let (trace, tracer) = pair();
    assert_eq!((trace.processes(), trace.events().count()), (vec![std::process::id()], 0));
    let highest = ((1usize << 57) - 1) & !4095;
    for (at, kind) in FaultKind::ALL.into_iter().enumerate() {
        tracer.fault(kind, highest - (at << 12), tracer.began_ns + 5_000_999, 1_000 << at);
    }
    tracer.evicted(7 << 20, 2 << 20);
    tracer.evicted(7 << 20, 1 << 40);
    let events: Vec<Event> = trace.events().collect();
    assert_eq!((events.len(), trace.seen()), (8, 8));
    for (at, (event, kind)) in events.iter().zip(FaultKind::ALL).enumerate() {
        let What::Fault { kind: found, took_ns } = event.what else { panic!("a fault: {event:?}") };
        let address = (highest - (at << 12)) as u64;
        assert_eq!((event.time_us, event.pid, event.address), (5_000, std::process::id(), address));
        assert_eq!((found, event.bytes), (kind, 4096));
        assert!((1_000 << at..(1_000 << at) * 9 / 8 + 1).contains(&took_ns), "{event:?}");
    }
    assert_eq!((events[6].what, events[6].address, events[6].bytes), (What::Eviction, 7 << 20, 2 << 20));
    assert_eq!(events[7].bytes, ((1 << PAGES_BITS) - 1) << 12, "the most that can be told");
}

#[test]
fn a_process_has_one_number_whatever_it_executes() {
    let (trace, first) = pair();
    let second = Tracer::open(&trace.path()).expect("opened");
    assert_eq!((first.process, second.process, trace.processes().len()), (0, 0, 1));
    let full = PROCESSES_MAX as u64;
    trace.words[Header::Processes as usize].store(full, Ordering::Relaxed);
    trace.words[IDENTITIES].store(1, Ordering::Relaxed);
    let Err(error) = Tracer::open(&trace.path()) else { panic!("there is no number left") };
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn threads_that_write_at_once_lose_nothing() {
    let (trace, tracer) = pair();
    thread::scope(|scope| {
        for thread in 0..4usize {
            let tracer = &tracer;
            scope
                .spawn(move || (1..=10_000).for_each(|at| tracer.evicted((thread << 32) + (at << 12), 4096)));
        }
    });
    let mut addresses: Vec<u64> = trace.events().map(|event| event.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!((addresses.len(), trace.seen()), (40_000, 40_000));
}

#[test]
fn a_full_trace_keeps_its_beginning_and_counts_the_rest() {
    let (trace, tracer) = pair();
    tracer.evicted(1 << 20, 4096);
    trace.words[Header::Events as usize].store(EVENTS_MAX as u64 - 1, Ordering::Relaxed);
    for at in 2..5 {
        tracer.evicted(at << 20, 4096);
    }
    let addresses: Vec<u64> = trace.events().map(|event| event.address).collect();
    assert_eq!((addresses, trace.seen()), (vec![1 << 20, 2 << 20], EVENTS_MAX as u64 + 2));
}

#[test]
fn places_that_were_not_filled_and_nonsense_are_no_events() {
    let (trace, tracer) = pair();
    trace.words[Header::Events as usize].store(u64::MAX, Ordering::Relaxed);
    trace.words[Header::Processes as usize].store(u64::MAX, Ordering::Relaxed);
    let nonsense = [u64::MAX, EVICTION + 1, EVICTION | 9 << (KIND_BITS + TOOK_BITS), EVICTION];
    for (at, word) in nonsense.into_iter().enumerate() {
        trace.words[EVENTS + 2 * at].store(word, Ordering::Relaxed);
    }
    assert_eq!(trace.events().count(), 1, "only the last is of a process that there is");
    assert_eq!((trace.processes().len(), tracer.process), (1, 0));
    assert!(Tracer::open(Path::new("/proc/self/exe")).is_err());
}
