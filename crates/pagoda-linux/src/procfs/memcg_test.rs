use super::*;

fn group(root: &Path, version: MemcgVersion, path: &Path, files: &[(&str, &str)]) -> Memcg {
    fs::create_dir_all(path).expect("made");
    files.iter().for_each(|(name, text)| fs::write(path.join(name), text).expect("written"));
    Memcg { version, path: path.to_owned(), writable: false, mount: root.to_owned() }
}

#[test]
fn the_group_is_found_in_either_hierarchy_and_in_a_container() {
    let v1 = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                  35 31 0:32 / /sys/fs/cgroup/memory rw shared:4 - cgroup cgroup rw,memory\n\
                  41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    let groups = "4:memory:/job/1\n1:cpu:/\n0::/\n";
    let path =
        |found: Option<(MemcgVersion, PathBuf, PathBuf)>| found.map(|(version, _, path)| (version, path));
    let expected = |version, path: &str| Some((version, PathBuf::from(path)));
    let at = "/sys/fs/cgroup/memory";
    let found = path(found_in(v1, groups));
    assert_eq!(found, expected(MemcgVersion::V1, "/sys/fs/cgroup/memory/job/1"));
    let container = v1.replace("0:32 / ", "0:32 /job/1 ");
    assert_eq!(path(found_in(&container, groups)), expected(MemcgVersion::V1, at));
    assert_eq!(path(found_in(v1, "4:memory:/../other\n")), expected(MemcgVersion::V1, at));
    let v2 = "24 21 0:5 / /sys/fs/cgroup rw,nosuid shared:9 master:1 - cgroup2 cgroup2 rw\n";
    let found = path(found_in(v2, "0::/user.slice\n"));
    assert_eq!(found, expected(MemcgVersion::V2, "/sys/fs/cgroup/user.slice"));
    assert_eq!(found_in("21 1 0:4 / /proc rw - proc proc rw\n", groups), None);
}

#[test]
fn the_limit_that_leaves_least_counts_wherever_it_is() {
    let root = tempfile::tempdir().expect("a directory");
    let below = root.path().join("pod/container");
    let own = group(
        root.path(),
        MemcgVersion::V2,
        &below,
        &[
            ("memory.max", "300\n"),
            ("memory.high", "max\n"),
            ("memory.current", "60\n"),
            ("memory.stat", "anon 10\ninactive_file 20\nactive_file 15\nslab_reclaimable 5\n"),
            ("memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ],
    );
    let limit = |group: &Path, limit, used| {
        Some(MemoryLimit { group: group.to_owned(), limit: Bytes::new(limit), used: Bytes::new(used) })
    };
    assert_eq!((own.limit(), own.oom_kills()), (limit(&below, 300, 20), Some(2)));
    let pod = root.path().join("pod");
    group(
        root.path(),
        MemcgVersion::V2,
        &pod,
        &[("memory.max", "max\n"), ("memory.high", "400\n"), ("memory.current", "390\n")],
    );
    assert_eq!(own.limit(), limit(&pod, 400, 390), "the others there hold the most of it");
}

#[test]
fn a_limit_of_version_1_counts_groups_that_are_not_mounted() {
    let root = tempfile::tempdir().expect("a directory");
    let own = group(
        root.path(),
        MemcgVersion::V1,
        &root.path().join("job"),
        &[
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.usage_in_bytes", "50\n"),
            ("memory.stat", "inactive_file 1\nhierarchical_memory_limit 9223372036854771712\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"),
        ],
    );
    assert_eq!((own.limit(), own.oom_kills()), (None, Some(0)));
    let hidden = "hierarchical_memory_limit 200\ntotal_inactive_file 10\ntotal_active_file 5\n";
    fs::write(own.path.join("memory.stat"), hidden).expect("written");
    let limit = own.limit().expect("there is one");
    assert_eq!((limit.limit.get(), limit.used.get()), (200, 35));
}
