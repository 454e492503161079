use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

#[test]
fn a_thread_has_its_name_and_is_waited_for() {
    let (tell, told) = channel();
    let thread = JoinableThread::start("pagoda-test", move || {
        let name = std::fs::read_to_string("/proc/thread-self/comm").expect("readable");
        tell.send(name).expect("waited for");
    });
    let thread = thread.expect("a thread");
    assert_eq!(thread.name(), "pagoda-test");
    thread.join().expect("no panic");
    assert_eq!(told.try_recv().expect("told before its end"), "pagoda-test\n");
}

#[test]
fn a_panic_comes_to_the_one_that_waits() {
    let thread = JoinableThread::start("pagoda-test", || std::panic::panic_any(7u32)).expect("a thread");
    let panicked = thread.join().expect_err("a panic");
    assert_eq!(panicked.downcast_ref::<u32>(), Some(&7));
}

#[test]
fn both_run_at_once_and_a_panic_of_either_comes_after_the_other() {
    let ((to_own, from_other), (to_other, from_own)) = (channel(), channel());
    let own = || {
        to_other.send(()).expect("it waits");
        from_other.recv().expect("sent")
    };
    let other = move || {
        from_own.recv().expect("sent");
        to_own.send(5).expect("it waits");
        6
    };
    assert_eq!(both(own, other), (5, 6));
    let ended = AtomicBool::new(false);
    let panics = |of_own: bool| {
        let end = |panics: bool| {
            if panics {
                std::panic::panic_any(7u32);
            }
            ended.store(true, Ordering::Release);
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| both(|| end(of_own), || end(!of_own))));
        outcome.expect_err("a panic").downcast_ref::<u32>() == Some(&7) && ended.swap(false, Ordering::AcqRel)
    };
    assert!(panics(true) && panics(false));
}

#[test]
fn a_thread_that_is_let_go_runs_on() {
    let ((go, goes), (tell, told)) = (channel(), channel());
    drop(JoinableThread::start("pagoda-test", move || {
        goes.recv().expect("sent");
        tell.send(()).expect("waited for");
    }));
    go.send(()).expect("it waits");
    told.recv().expect("it has gone on");
}
