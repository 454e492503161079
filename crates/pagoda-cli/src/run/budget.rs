//! The budget of a run: the requested one, or the smaller one below the memory limit of this
//! process's group.
//!
//! A budget above the limit would have the kernel kill the program without a word, where Pagoda was
//! to keep it going. So a smaller one is taken, and the user is told before anything runs. This
//! module must never take a larger budget than the user asked for.

use std::fmt;
use std::str::FromStr;

use pagoda::config::MINIMUM_BUDGET;
use pagoda::error::StartError;
use pagoda::frames::zones::ZoneConfig;
use pagoda_core::budget::memory_limit::{beside, largest_budget};
use pagoda_core::size::{Bytes, SizeError};
use pagoda_linux::procfs::memcg::{Memcg, MemoryLimit};
use serde::Serialize;

use crate::exit_error::ExitError;

/// A size as `--memory` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many bytes.
    Bytes(Bytes),
    /// A part of the memory that this process may have.
    Percent(u8),
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let percent = text.strip_suffix('%').and_then(|number| number.parse().ok());
        match percent {
            Some(percent @ 1..=100) => Ok(Self::Percent(percent)),
            _ => text.parse().map(Self::Bytes),
        }
    }
}

/// The memory that this process may have.
pub struct Group {
    memcg: Option<Memcg>,
    limit: Option<MemoryLimit>,
    oom_kills_before: u64,
}

/// The part of `--stats` about the group with the nearest limit.
#[derive(Clone, Debug, Serialize)]
pub struct GroupStats {
    path: String,
    limit_bytes: Option<u64>,
    /// Processes that the kernel has ended there for want of memory since the run began.
    oom_kills: u64,
}

impl Group {
    /// Looks at the group of this process, which is the program's, too.
    pub fn look() -> Self {
        let memcg = Memcg::find();
        let limit = memcg.as_ref().and_then(Memcg::limit);
        let oom_kills_before = memcg.as_ref().and_then(Memcg::oom_kills).unwrap_or(0);
        Self { memcg, limit, oom_kills_before }
    }

    /// The budget that was asked for, in one piece or in zones.
    pub fn asked(&self, memory: Option<Size>, zones: &[ZoneConfig]) -> Result<Bytes, ExitError> {
        let sum = zones.iter().try_fold(0u64, |sum, zone| sum.checked_add(zone.bytes.get()));
        let sum =
            Bytes::new(sum.ok_or_else(|| ExitError::own("--zone: all together are too large; give less"))?);
        let budget = match memory {
            Some(Size::Bytes(bytes)) => bytes,
            Some(Size::Percent(percent)) => self.part(percent),
            None if zones.is_empty() => {
                return Err(ExitError::own("--memory was not given; give a budget, like --memory 512M"));
            }
            None => sum,
        };
        if !zones.is_empty() && budget != sum {
            return Err(ExitError::own(format!(
                "--memory {budget}: the zones are {sum} together; leave --memory out, or make them the same"
            )));
        }
        if budget < MINIMUM_BUDGET {
            let option = if memory.is_some() { "--memory" } else { "--zone" };
            return Err(ExitError::own(format!("{option} {budget}: {}", StartError::BudgetBelowMinimum)));
        }
        Ok(budget)
    }

    /// A part of the limit or of the machine's memory, whichever is less.
    fn part(&self, percent: u8) -> Bytes {
        let machine = pagoda_linux::procfs::memcg::machine_memory();
        let whole = self.limit.as_ref().map_or(machine, |limit| limit.limit.min(machine));
        Bytes::mib(((whole.get() >> 10) * u64::from(percent) / 100) >> 10)
    }

    /// As much of `asked` as the limit leaves, with a line to say if that is less.
    pub fn fitting(&self, asked: Bytes, zones: &[ZoneConfig]) -> Result<(Bytes, Option<String>), ExitError> {
        let Some(limit) = &self.limit else { return Ok((asked, None)) };
        let most = largest_budget(limit.limit, limit.used);
        if asked <= most {
            return Ok((asked, None));
        }
        let told = Told(limit);
        if most < MINIMUM_BUDGET {
            return Err(ExitError::own(format!(
                "{told}: that leaves less than the least budget, {MINIMUM_BUDGET}; raise the limit"
            )));
        }
        if !zones.is_empty() {
            return Err(ExitError::own(format!(
                "--zone: the zones are {asked} together, and {told}; make them {most} at most, or raise the limit"
            )));
        }
        Ok((most, Some(format!("budget: {most} in place of {asked}: {told}"))))
    }

    /// The part of `--stats`; none where no group is limited.
    pub fn stats(&self) -> Option<GroupStats> {
        let limit = self.limit.as_ref();
        let path = limit.map(|limit| &limit.group).or(self.memcg.as_ref().map(|group| &group.path))?;
        Some(GroupStats {
            path: path.display().to_string(),
            limit_bytes: limit.map(|limit| limit.limit.get()),
            oom_kills: self.oom_kills(),
        })
    }

    /// Processes of the group that the kernel has ended since the run began.
    fn oom_kills(&self) -> u64 {
        let now = self.memcg.as_ref().and_then(Memcg::oom_kills).unwrap_or(0);
        now.saturating_sub(self.oom_kills_before)
    }

    /// A line, if the kernel has ended processes of the group for want of memory.
    pub fn killed(&self) -> Option<String> {
        let kills = self.oom_kills();
        let group = self.memcg.as_ref().filter(|_| kills > 0)?;
        let path = group.path.display();
        let limit = self.limit.as_ref().map_or_else(String::new, |limit| format!("; {}", Told(limit)));
        Some(format!(
            "the kernel ended {kills} process(es) of the control group {path} for want of memory{limit}; give a smaller \
             --memory, or more to the group"
        ))
    }
}

/// How a limit is told.
struct Told<'a>(&'a MemoryLimit);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryLimit { group, limit, used } = self.0;
        write!(
            f,
            "the memory limit of the control group {} is {limit}, of which {used} are taken, and {} stay free for page \
             tables and bursts",
            group.display(),
            beside(*limit)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(limit: Bytes, used: Bytes) -> Group {
        let limit = MemoryLimit { group: "/group".into(), limit, used };
        Group { memcg: None, limit: Some(limit), oom_kills_before: 0 }
    }

    fn zones(sizes: &[&str]) -> Vec<ZoneConfig> {
        sizes.iter().map(|size| size.parse().expect("a zone")).collect()
    }

    #[test]
    fn a_size_is_a_number_of_bytes_or_a_percentage() {
        assert_eq!("75%".parse(), Ok(Size::Percent(75)));
        assert_eq!("1G".parse(), Ok(Size::Bytes(Bytes::gib(1))));
        for wrong in ["0%", "101%", "7.5%", "%", "-5%", "75 %", "G"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_percentage_is_of_the_limit_where_it_is_below_the_machines_memory() {
        let group = limited(Bytes::mib(200), Bytes::ZERO);
        assert_eq!(group.asked(Some(Size::Percent(75)), &[]).expect("taken"), Bytes::mib(150));
        let machine = limited(Bytes::gib(1 << 30), Bytes::ZERO).asked(Some(Size::Percent(100)), &[]);
        assert!(machine.expect("taken") <= pagoda_linux::procfs::memcg::machine_memory());
    }

    #[test]
    fn a_budget_that_the_limit_leaves_no_room_for_becomes_smaller_and_that_is_said() {
        let group = limited(Bytes::mib(96), Bytes::mib(6));
        assert_eq!(group.fitting(Bytes::mib(60), &[]).expect("fits"), (Bytes::mib(60), None));
        let (budget, line) = group.fitting(Bytes::mib(256), &[]).expect("taken");
        assert_eq!(budget, Bytes::mib(60));
        let line = line.expect("a line");
        assert!(
            line.starts_with(
                "budget: 60 MiB in place of 256 MiB: the memory limit of the control group /group"
            )
        );
    }

    #[test]
    fn a_limit_below_the_least_budget_or_the_zones_is_refused() {
        let refused = |group: &Group, asked, zones: &[ZoneConfig]| {
            group.fitting(asked, zones).expect_err("refused").to_string()
        };
        let small = limited(Bytes::mib(50), Bytes::ZERO);
        assert!(refused(&small, Bytes::mib(64), &[]).contains("less than the least budget"));
        let zones = zones(&["near=64M", "far=64M@remote"]);
        let group = limited(Bytes::mib(128), Bytes::ZERO);
        assert_eq!(group.asked(None, &zones).expect("taken"), Bytes::mib(128));
        assert!(refused(&group, Bytes::mib(128), &zones).contains("make them 96 MiB at most"));
    }
}
