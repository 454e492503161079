use proptest::prelude::*;

use super::*;

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// An error as a server would send it.
fn told(line: &str) -> Value {
    redis::Parser::new().parse_value(format!("-{line}\r\n").as_bytes()).expect("an answer")
}

#[test]
fn valid_answers_of_a_cluster_are_followed_and_no_others() {
    let (named, from) = (at("192.0.2.1:6379"), at("192.0.2.2:6380"));
    let cluster = Routes::new(named, true);
    let astray = Turn::Not(RemoteError::Astray);
    for (line, turn) in [
        ("MOVED 3999 192.0.2.9:6381", Turn::Moved(at("192.0.2.9:6381"))),
        ("ASK 0 192.0.2.9:6381", Turn::Ask(at("192.0.2.9:6381"))),
        ("MOVED 1 2001:db8::7:6381", Turn::Moved(at("[2001:db8::7]:6381"))),
        ("MOVED 1 :6381", Turn::Moved(at("192.0.2.2:6381"))),
        ("MOVED 16384 192.0.2.9:6381", astray),
        ("MOVED 1 node.example:6381", astray),
        ("MOVED 1 ?:6381", astray),
        ("MOVED 1 192.0.2.9:0", astray),
        ("MOVED 1 192.0.2.9:65536", astray),
        ("MOVED 1 0.0.0.0:6379", astray),
        ("MOVED 1 127.0.0.1:22", astray),
        ("MOVED 1 ::ffff:127.0.0.1:22", astray),
        ("MOVED 1 ::1:22", astray),
        ("ASK 1 169.254.169.254:80", astray),
        ("MOVED 1 255.255.255.255:80", astray),
        ("MOVED 1 ff02::1:80", astray),
        ("MOVED", astray),
        ("MOVED 1", astray),
        ("TRYAGAIN later", Turn::Again),
        ("CLUSTERDOWN The cluster is down", Turn::Not(RemoteError::Down)),
        ("OOM no memory", Turn::Not(RemoteError::Full)),
        ("LOADING it", Turn::Not(RemoteError::Refused)),
    ] {
        assert_eq!(cluster.turn(&told(line), from), Some(turn), "{line}");
    }
    assert_eq!(cluster.turn(&Value::Okay, from), None);
    // A single server has no node to redirect us to.
    let single = Routes::new(named, false);
    for line in ["MOVED 3999 192.0.2.9:6381", "ASK 0 192.0.2.9:6381", "TRYAGAIN", "CLUSTERDOWN"] {
        assert_eq!(single.turn(&told(line), named), Some(Turn::Not(RemoteError::Refused)), "{line}");
    }
    let near = Routes::new(at("127.0.0.1:6379"), true);
    let moved = near.turn(&told("MOVED 1 127.0.0.1:6380"), at("127.0.0.1:6379"));
    assert_eq!(moved, Some(Turn::Moved(at("127.0.0.1:6380"))));
}

#[test]
fn the_shards_of_a_lost_node_are_asked_for_at_the_others_in_turn() {
    let (named, second, third) = (at("192.0.2.1:1"), at("192.0.2.1:2"), at("192.0.2.1:3"));
    let routes = Routes::new(named, true);
    routes.lost(named);
    assert_eq!(routes.node_of(0), named, "there is no other");
    routes.moved(4, second);
    routes.moved(5, third);
    routes.lost(second);
    assert_eq!((routes.node_of(3), routes.node_of(4), routes.node_of(5)), (named, third, third));
    routes.lost(third);
    assert_eq!(routes.nodes(), [named]);
}

proptest! {
    #[test]
    fn whatever_is_told_few_nodes_are_known(
        steps in proptest::collection::vec((0..SHARDS, 1u16..200, any::<bool>()), 0..300),
    ) {
        let named = at("192.0.2.1:9999");
        let routes = Routes::new(named, true);
        for (shard, port, is_lost) in steps {
            let node = SocketAddr::new(named.ip(), port);
            if is_lost { routes.lost(node) } else { routes.moved(shard, node) }
            let state = routes.state.lock();
            prop_assert!(state.known.len() <= NODES_MOST && state.known[0] == named);
            prop_assert!(state.at.iter().all(|at| state.known.contains(at)));
        }
    }

    #[test]
    fn no_error_makes_reading_it_panic(code in "MOVED|ASK", text: String) {
        let routes = Routes::new(at("192.0.2.1:9999"), true);
        let line = format!("{code} {}", text.replace(['\r', '\n'], " "));
        prop_assert!(routes.turn(&told(&line), at("192.0.2.1:9999")).is_some());
    }
}
