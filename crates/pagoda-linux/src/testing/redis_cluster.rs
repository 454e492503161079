//! A real cluster of Redis servers for tests, on the loopback address: masters alone, without
//! replicas.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::redis::RedisServer;
use super::wait::until;

/// Slots of a cluster.
const SLOTS: usize = 16384;

/// The time after which a killed node is missed, and after which an introduced one is forgotten
/// unless it answers: long enough for a busy machine, as a rule.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// The slots of each node by this node's view, and how firmly: of each node its name, its epoch and
/// its slots.
fn claims(server: &RedisServer) -> Vec<String> {
    let claim = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let slots = words.iter().skip(8).filter(|range| !range.starts_with('['));
        [words[0], words[6]].iter().chain(slots).copied().collect::<Vec<_>>().join(" ")
    };
    let mut claims: Vec<String> = server.ask("CLUSTER NODES").lines().map(claim).collect();
    claims.sort_unstable();
    claims
}

/// Some servers that share the slots among them.
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    options: Vec<String>,
}

impl RedisCluster {
    /// Starts `masters` servers with their files below `directory` and these options, the slots
    /// split among them; `None` and a line that says so if there is no server on this machine.
    ///
    /// # Panics
    /// If they do not come together; if there is none and `PAGODA_NO_SKIPS` is set.
    #[must_use]
    pub fn start(directory: &Path, masters: usize, options: &[&str]) -> Option<Self> {
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        let own = ["--cluster-enabled", "yes", "--cluster-node-timeout", &timeout];
        let options: Vec<String> = own.iter().chain(options).map(|&option| option.to_owned()).collect();
        let start = |node: usize| {
            let directory = directory.join(format!("node{node}"));
            fs::create_dir_all(&directory).expect("a directory");
            RedisServer::start(&directory, &options.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let cluster = Self { nodes: (0..masters).map(start).collect::<Option<_>>()?, options };
        for node in 0..masters {
            let [first, end] = [node, node + 1].map(|node| node * SLOTS / masters);
            cluster.tell(node, &format!("CLUSTER ADDSLOTSRANGE {first} {}", end - 1));
            cluster.tell(node, &format!("CLUSTER SET-CONFIG-EPOCH {}", node + 1));
        }
        cluster.meet();
        cluster.wait_until_whole();
        Some(cluster)
    }

    /// Introduces each node to those before it.
    fn meet(&self) {
        for (node, server) in self.nodes.iter().enumerate() {
            let port = server.address().port();
            (0..node).for_each(|other| self.tell(other, &format!("CLUSTER MEET 127.0.0.1 {port}")));
        }
    }

    /// Its servers.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Sends a node a command that it answers with OK.
    ///
    /// # Panics
    /// If it won't.
    pub fn tell(&self, node: usize, request: &str) {
        assert_eq!(self.nodes[node].ask(request), "OK", "{request}");
    }

    /// Returns when all nodes know each other and the whole cluster can be used from each. A node
    /// that was introduced while the other had to wait for its disk may be forgotten, and is
    /// introduced again.
    pub fn wait_until_whole(&self) {
        let is_whole = |server: &RedisServer| {
            let info = server.ask("CLUSTER INFO");
            let says = |line: &str| info.lines().any(|told| told.trim_end() == line);
            says("cluster_state:ok")
                && says(&format!("cluster_known_nodes:{}", self.nodes.len()))
                && says(&format!("cluster_size:{}", self.nodes.len()))
                && !server.ask("CLUSTER NODES").contains("handshake")
        };
        let mut met = Instant::now();
        until("the cluster is whole", || {
            std::thread::sleep(Duration::from_millis(20));
            if met.elapsed() > 2 * NODE_TIMEOUT {
                self.meet();
                met = Instant::now();
            }
            self.nodes.iter().all(is_whole)
        });
    }

    /// The slot of a key.
    ///
    /// # Panics
    /// If no node says so.
    #[must_use]
    pub fn slot_of(&self, key: &str) -> usize {
        self.nodes[0].ask(&format!("CLUSTER KEYSLOT {key}")).parse().expect("a number")
    }

    /// The node that has a slot, as long as only this value moves slots.
    ///
    /// # Panics
    /// If none has it.
    #[must_use]
    pub fn node_of(&self, slot: usize) -> usize {
        let has = |server: &RedisServer| {
            let nodes = server.ask("CLUSTER NODES");
            let own = nodes.lines().find(|line| line.contains("myself")).expect("itself");
            own.split(' ').skip(8).filter(|range| !range.starts_with('[')).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                (first.parse().expect("a slot")..=last.parse().expect("a slot")).contains(&slot)
            })
        };
        self.nodes.iter().position(has).expect("one has it")
    }

    /// The first step of a slot's way to another node: keys that are not at `from` are asked for at
    /// `to`.
    pub fn begin_move(&self, slot: usize, from: usize, to: usize) {
        self.tell(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.id(from)));
        self.tell(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.id(to)));
    }

    /// The second one: its keys move.
    pub fn move_keys(&self, slot: usize, from: usize, to: usize) {
        let port = self.nodes[to].address().port();
        for key in self.nodes[from].ask(&format!("CLUSTER GETKEYSINSLOT {slot} 1000")).lines() {
            let told = self.nodes[from].ask(&format!("MIGRATE 127.0.0.1 {port} {key} 0 30000"));
            assert!(["OK", "NOKEY"].contains(&told.as_str()), "it moves, or was deleted meanwhile: {told}");
        }
    }

    /// The third one: from now on it is that node's. Returns when all nodes know. A node that gets
    /// a slot before it has heard of the slot's last move claims it no more firmly than the node
    /// that lost it, and the nodes settle that by throwing keys away.
    pub fn end_move(&self, slot: usize, from: usize, to: usize) {
        let id = self.id(to);
        for node in [to, from] {
            self.tell(node, &format!("CLUSTER SETSLOT {slot} NODE {id}"));
        }
        let of_all = || self.nodes.iter().map(claims).collect::<Vec<_>>();
        until("all nodes know of a move", || {
            std::thread::sleep(Duration::from_millis(1));
            of_all().windows(2).all(|pair| pair[0] == pair[1])
        });
    }

    /// A slot of a node that is gone becomes another's, empty.
    pub fn replace(&self, slot: usize, gone: usize, by: usize) {
        let id = self.id(by);
        for node in (0..self.nodes.len()).filter(|node| *node != gone) {
            self.tell(node, &format!("CLUSTER SETSLOT {slot} NODE {id}"));
        }
    }

    fn id(&self, node: usize) -> String {
        self.nodes[node].ask("CLUSTER MYID")
    }

    /// Kills a node, as if its machine had failed.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Starts it anew, with the files that are there.
    pub fn restart(&mut self, node: usize) {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        self.nodes[node].restart(&options);
    }
}
