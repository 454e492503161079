use super::*;

/// Its number may be another device's by now: of another process.
fn is_gone(id: DeviceId) -> bool {
    let device = Device { id: id.number, made_node: false };
    !device.attribute("").exists() || DeviceId::of(id.number) != id
}

#[test]
fn mm_stat_is_read_by_position() {
    let usage = Usage::parse("  4096  1365  8192  0  12288  1  0  2  0\n").expect("a usage");
    assert_eq!((usage.content_bytes, usage.compressed_bytes), (4096, 1365));
    assert_eq!((usage.memory_bytes, usage.memory_bytes_max), (8192, 12288));
    assert_eq!(Usage::parse("1 2 3"), None);
}

#[test]
fn a_dropped_device_is_off_and_gone_and_a_stranger_is_left_alone() {
    let label = Label::new("pagoda-ztest");
    let setup = Setup { disk_bytes: 8 << 20, memory_bytes_max: Some(4 << 20), label, priority: 1 };
    let zram = match ZramSwap::create(setup) {
        Ok(zram) => zram,
        Err(error) => {
            return crate::testing::skip::skip("zram", error);
        }
    };
    let node = zram.device.0.node();
    assert_eq!(swapfile::owner(&node, label), Some(std::process::id()));
    assert!(remove_where(label, |pid| pid != std::process::id()).expect("looked").is_empty());
    assert!(remove_where(Label::new("other"), |_| true).expect("looked").is_empty());
    assert!(zram.usage().expect("usage").memory_bytes <= 4 << 20);
    let id = DeviceId::of(zram.device.0.id);
    drop(zram);
    assert!(is_gone(id));
}

/// As a run leaves it that was killed after it had added a device, sized it, or made it swap.
#[test]
fn a_device_is_removed_at_any_step_of_its_set_up_and_its_numbers_next_one_is_not() {
    let label = Label::new("pagoda-zleft");
    let added = || match add() {
        Ok(id) => Some(id),
        Err(error) => {
            crate::testing::skip::skip("zram", error);
            None
        }
    };
    let owner = std::process::id();
    for is_sized in [false, true] {
        let Some(id) = added() else { return };
        let device = Device { id: id.number, made_node: false };
        if is_sized && let Err(error) = device.set("disksize", "8388608") {
            let _ = device.remove();
            return crate::testing::skip::skip("zram", error);
        }
        let later = DeviceId { sequence: id.sequence + 1, ..id };
        assert!(!remove_left(later, label, owner).expect("looked"), "another one");
        assert!(device.attribute("").exists());
        assert!(remove_left(id, label, owner).expect("removed"), "sized: {is_sized}");
        assert!(is_gone(id));
    }
    let Some(id) = added() else { return };
    let setup = Setup { disk_bytes: 8 << 20, memory_bytes_max: None, label, priority: 1 };
    let _zram = match ZramSwap::create_on(id, setup) {
        Ok(zram) => std::mem::ManuallyDrop::new(zram),
        Err(error) => return crate::testing::skip::skip("zram", error),
    };
    assert!(!remove_left(id, label, owner + 1).expect("looked"), "another process's");
    assert!(!remove_left(id, Label::new("other"), owner).expect("looked"), "another label");
    assert!(remove_left(id, label, owner).expect("removed"));
    assert!(is_gone(id));
}

/// As udev does.
#[test]
fn a_device_that_another_process_looks_into_is_removed_as_soon_as_it_is_closed() {
    let label = Label::new("pagoda-zopen");
    let setup = Setup { disk_bytes: 8 << 20, memory_bytes_max: None, label, priority: 1 };
    let zram = match ZramSwap::create(setup) {
        Ok(zram) => zram,
        Err(error) => return crate::testing::skip::skip("zram", error),
    };
    let id = DeviceId::of(zram.device.0.id);
    let open = fs::File::open(zram.node()).expect("opened");
    let closes = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(open);
    });
    drop(zram);
    closes.join().expect("no panic");
    assert!(is_gone(id));
}
