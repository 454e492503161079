//! The choices of policy that a library's manager has for comparisons.
//!
//! A program needs none of them: the benches show what each is worth. This module must never have a
//! choice that changes what memory holds.

use pagoda_core::clear::Order as ClearOrder;
use pagoda_core::release::ReleasePolicy;
use pagoda_core::zone::ZonePolicy;
use pagoda_core::zone::reclaim::ZoneReclaim;

use crate::assemble::Policies;
use crate::config::Config;

/// Choices of policy; see [`ManagerBuilder::tune`](crate::ManagerBuilder::tune).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    zone_policy: ZonePolicy,
    zone_reclaim: ZoneReclaim,
    io_uring: bool,
    fault_around: bool,
    tiering: bool,
    release: ReleasePolicy,
    release_gate: u32,
    clear_order: Option<ClearOrder>,
    clear_ahead_percent: u32,
}

impl Default for Tuning {
    fn default() -> Self {
        let (config, policies) = (Config::library(), Policies::default());
        Self {
            zone_policy: config.zone_policy,
            zone_reclaim: policies.zone_reclaim,
            io_uring: config.io_uring,
            fault_around: true,
            tiering: !policies.no_tiering,
            release: policies.release,
            release_gate: 1 + policies.release_gate_more,
            clear_order: policies.clearing.order,
            clear_ahead_percent: policies.clearing.ahead_percent,
        }
    }
}

impl Tuning {
    /// How zones share allocations: by [`ZonePolicy::Fair`] if it is not said.
    #[must_use]
    pub fn zone_policy(mut self, policy: ZonePolicy) -> Self {
        self.zone_policy = policy;
        self
    }
    /// Whether pages of all zones age on one list, as by default, or zones are reclaimed each by
    /// itself, as in Linux before 4.8. It does not matter with one zone.
    #[must_use]
    pub fn zone_reclaim(mut self, reclaim: ZoneReclaim) -> Self {
        self.zone_reclaim = reclaim;
        self
    }
    /// Whether several requests to the spill file may be in flight at once, by io_uring: yes, if it
    /// is not said, where the kernel allows it and the thread that builds the manager has no system
    /// call filter. From the first thread on that is found to have one, it is not used any more.
    /// **Say no if the program puts a filter over all of its threads later**
    /// (`SECCOMP_FILTER_FLAG_TSYNC`) that ends it for `io_uring_enter`: between the question and
    /// the call it can't be seen.
    #[must_use]
    pub fn io_uring(mut self, yes: bool) -> Self {
        self.io_uring = yes;
        self
    }
    /// Whether a sequential first touch fills up to 2 MiB with one fault; yes by default. The fill
    /// doubles with each fault of a stream, and is one base page after any other. It never goes
    /// beyond a region or onto a filled page, and nothing is filled ahead when less than 8 MiB are
    /// left above the high watermark. A stream that ends leaves at most as much filled and
    /// untouched as it was long, and 6 MiB, and an eighth of its writes beyond 64 MiB; 18 MiB at
    /// most. With a base page of 64 KiB a stream of writes gets aligned places of 2 MiB, each as
    /// one huge frame: three with one fault, after each that it wrote in base pages, and up to
    /// eight beyond 64 MiB. It does not matter with a base page of 2 MiB.
    #[must_use]
    pub fn fault_around(mut self, yes: bool) -> Self {
        self.fault_around = yes;
        self
    }
    /// Whether hot pages in remote zones and cold ones in local zones change places; yes by
    /// default. To find them, up to 256 base pages of each kind of zone are staged in 50 ms, and
    /// 256 change places at most; less often while that finds nothing. It does not matter without a
    /// remote zone.
    #[must_use]
    pub fn tiering(mut self, yes: bool) -> Self {
        self.tiering = yes;
        self
    }
    /// How the stored pages of a closed region are released; by default
    /// [`ReleasePolicy::Spans`].
    #[must_use]
    pub fn release(mut self, policy: ReleasePolicy) -> Self {
        self.release = policy;
        self
    }
    /// How many owners have to close at once, with stored pages, for
    /// [`ReleasePolicy::Background`] to hand over what the last of them has; before that they free
    /// their pages themselves. 1 by default, and for 0: each hands over. The published series has a
    /// gate of 2. Other policies have none.
    #[must_use]
    pub fn release_gate(mut self, closers: u32) -> Self {
        self.release_gate = closers.max(1);
        self
    }
    /// The order in which a huge frame that was used before is cleared within a fault. If it is not
    /// said the one that suits is chosen: [`ClearOrder::Streaming`], unless clearing into the cache
    /// turns out to be quicker here. Base frames that were used go by it, too, and upwards if it is
    /// not said.
    #[must_use]
    pub fn clear_order(mut self, order: ClearOrder) -> Self {
        self.clear_order = Some(order);
        self
    }
    /// The share of one processor for clearing frames ahead of faults, and as much again for
    /// collapsing base pages to huge frames, in percent: 10 by default, 0 for neither. Each zone
    /// keeps at most an eighth of it and 64 MiB ready in huge frames, a sixty-fourth and 16 MiB in
    /// base frames, and nothing before the first fault that asked for one. Base frames make the
    /// first touches of a program's only running thread shorter, and those beside other running
    /// threads longer.
    #[must_use]
    pub fn clear_ahead(mut self, percent: u32) -> Self {
        self.clear_ahead_percent = percent.min(100);
        self
    }

    pub(crate) fn apply(self, config: &mut Config, policies: &mut Policies) {
        (config.zone_policy, config.io_uring) = (self.zone_policy, self.io_uring);
        (policies.fault_around, policies.release) = (self.fault_around, self.release);
        (policies.no_tiering, policies.zone_reclaim) = (!self.tiering, self.zone_reclaim);
        policies.release_gate_more = self.release_gate - 1;
        policies.clearing.order = self.clear_order;
        policies.clearing.ahead_percent = self.clear_ahead_percent;
    }
}
