//! The connections of one requester, one for each node, and the way of a request to the node that
//! has its shard.
//!
//! Requests to one node are one pipeline, and node follows node. A request that is redirected is
//! sent again unchanged, and only if the node has said that it did nothing. Every way ends: after a
//! few nodes, and by a deadline. A failure of one node does not affect the requests to others: each
//! request has its own outcome.

use std::borrow::Cow;
use std::net::SocketAddr;

use pagoda_linux::process::thread::{ran_ns, sleep_us};
use redis::{Cmd, Value};

use super::error::RemoteError;
use super::link::{Link, SMALL_ANSWER, packed};
use super::routes::{NODES_MOST, Routes, Turn};
use super::{REQUEST_NS, RETRY_US, RemoteAddress};

/// Nodes that one request is sent to at most. From a route that is out of date to the node that it
/// moves to there are three; the others are for a cluster that is just being changed.
const HOPS_MOST: u32 = 6;

/// The request to one shard: a command or one transaction.
pub(super) struct Part<'a> {
    pub shard: u32,
    pub request: Cow<'a, [u8]>,
    pub answers: usize,
    pub bytes_max: usize,
    /// Its answer is a number from 0 to this; nothing else says that it was done.
    pub counts_to: Option<i64>,
}

impl Part<'_> {
    /// A command whose answer is a number from 0 to `most`.
    pub fn counting(shard: u32, command: &Cmd, most: i64) -> Self {
        let request = Cow::Owned(command.get_packed_command());
        Self { shard, request, answers: 1, bytes_max: SMALL_ANSWER, counts_to: Some(most) }
    }

    /// Whether these are valid answers of a server that has done it.
    fn is_answered_by(&self, answers: &[Value]) -> bool {
        let is_count = |most| matches!(answers, [Value::Int(count)] if (0..=most).contains(count));
        self.counts_to.is_none_or(is_count)
    }
}

/// The outcome of a part: its answers, none of which is an error.
pub(super) type Outcome = Result<Vec<Value>, RemoteError>;

/// Where a part goes next.
struct Step {
    part: usize,
    node: SocketAddr,
    /// It is not that node's yet.
    asking: bool,
}

pub(super) struct Links {
    /// The user at each node.
    address: RemoteAddress,
    /// The one that was used last is the last.
    links: Vec<Link>,
    /// How long a node is waited for.
    pub request_ns: u64,
    #[cfg(test)]
    pub faults: crate::store::fault_injection::Faults,
}

impl Links {
    pub fn new(address: RemoteAddress) -> Self {
        Self {
            address,
            links: Vec::with_capacity(NODES_MOST),
            request_ns: REQUEST_NS,
            #[cfg(test)]
            faults: crate::store::fault_injection::Faults::default(),
        }
    }

    /// The next requests are sent by connections of their own.
    pub fn close(&mut self) {
        self.links.clear();
    }

    #[cfg(test)]
    pub fn inject(&mut self, faults: &crate::store::fault_injection::Faults) {
        self.faults = faults.clone();
        self.links.iter_mut().for_each(|link| link.faults = faults.clone());
    }

    fn link(&mut self, node: SocketAddr) -> &mut Link {
        let link = match self.links.iter().position(|link| link.node() == node) {
            Some(index) => self.links.remove(index),
            None => {
                if self.links.len() == NODES_MOST {
                    self.links.remove(0);
                }
                #[cfg_attr(not(test), expect(unused_mut))]
                let mut link = Link::new(RemoteAddress { socket: node, ..self.address.clone() });
                #[cfg(test)]
                link.faults.clone_from(&self.faults);
                link
            }
        };
        self.links.push(link);
        self.links.last_mut().expect("just pushed")
    }

    /// Asks one node, whatever it has, and returns the answer.
    pub fn ask_node(
        &mut self,
        node: SocketAddr,
        command: &Cmd,
        bytes_max: usize,
    ) -> Result<Value, RemoteError> {
        let request = command.get_packed_command();
        let end_ns = ran_ns() + self.request_ns;
        let answers = self.link(node).ask(&request, 1, bytes_max, end_ns)?;
        match answers.into_iter().next() {
            Some(Value::ServerError(_)) | None => Err(RemoteError::Refused),
            Some(answer) => Ok(answer),
        }
    }

    /// Asks for one part alone. See [`ask`](Self::ask).
    pub fn ask_one(&mut self, routes: &Routes, part: Part<'_>, end_ns: u64) -> Outcome {
        self.ask(routes, &[part], end_ns).pop().unwrap_or(Err(RemoteError::Refused))
    }

    /// Asks for each part where it is. No node is waited for longer than a request may take, and
    /// none after `end_ns`.
    ///
    /// Of a part that is an error it is not known whether anything was done.
    pub fn ask(&mut self, routes: &Routes, parts: &[Part<'_>], end_ns: u64) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = parts.iter().map(|_| Err(RemoteError::Astray)).collect();
        let first =
            |(part, of): (usize, &Part<'_>)| Step { part, node: routes.node_of(of.shard), asking: false };
        let mut left: Vec<Step> = parts.iter().enumerate().map(first).collect();
        for _ in 0..HOPS_MOST {
            let (mut next, mut waits) = (Vec::new(), false);
            while let Some(node) = left.first().map(|step| step.node) {
                let (here, elsewhere): (Vec<_>, _) = left.into_iter().partition(|step| step.node == node);
                left = elsewhere;
                let mut answers = match self.ask_parts(node, parts, &here, end_ns) {
                    Ok(answers) => answers.into_iter(),
                    Err(error) => {
                        routes.lost(node);
                        here.iter().for_each(|step| outcomes[step.part] = Err(error));
                        continue;
                    }
                };
                for step in here {
                    let part = &parts[step.part];
                    let answers: Vec<Value> = answers.by_ref().take(step.answers(part)).collect();
                    match answers.iter().find_map(|answer| routes.turn(answer, node)) {
                        None => {
                            let own: Vec<Value> = answers.into_iter().skip(step.asking.into()).collect();
                            let is_answered = part.is_answered_by(&own);
                            outcomes[step.part] = is_answered.then_some(own).ok_or(RemoteError::Refused);
                        }
                        Some(Turn::Not(error)) => outcomes[step.part] = Err(error),
                        Some(Turn::Moved(to)) => {
                            routes.moved(part.shard, to);
                            next.push(Step { node: to, asking: false, ..step });
                        }
                        Some(Turn::Ask(to)) => next.push(Step { node: to, asking: true, ..step }),
                        Some(Turn::Again) => {
                            // The outcome if nothing changes it.
                            outcomes[step.part] = Err(RemoteError::Down);
                            waits = true;
                            next.push(step);
                        }
                    }
                }
            }
            if next.is_empty() {
                break;
            }
            if waits {
                sleep_us(RETRY_US);
            }
            left = next;
        }
        outcomes
    }

    /// One pipeline of all that goes to a node.
    fn ask_parts(&mut self, node: SocketAddr, parts: &[Part<'_>], here: &[Step], end_ns: u64) -> Outcome {
        let (mut answers, mut bytes_max) = (0, 0);
        for step in here {
            answers += step.answers(&parts[step.part]);
            bytes_max += parts[step.part].bytes_max + SMALL_ANSWER;
        }
        let request = match here {
            // As a rule it is one, which may be long.
            [Step { part, asking: false, .. }] => Cow::Borrowed(&*parts[*part].request),
            _ => {
                let asking = packed(&[redis::cmd("ASKING")]);
                let before = |step: &Step| if step.asking { &*asking } else { &[] };
                Cow::Owned(
                    here.iter()
                        .flat_map(|step| [before(step), &parts[step.part].request])
                        .collect::<Vec<_>>()
                        .concat(),
                )
            }
        };
        let end_ns = end_ns.min(ran_ns() + self.request_ns);
        self.link(node).ask(&request, answers, bytes_max, end_ns)
    }
}

impl Step {
    fn answers(&self, part: &Part<'_>) -> usize {
        part.answers + usize::from(self.asking)
    }
}
