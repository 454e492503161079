//! Medians, least and greatest values over runs, the same for all benches. Pure. Never makes up a
//! value: the statistics of nothing are `None`.

use std::fmt;

use serde::Serialize;

use crate::measure::histogram::Percentiles;

/// A figure of several runs, each part rounded. In a report's JSON a member `x` of this type is the
/// three numbers `x`, `x_least` and `x_most`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Measured {
    /// A figure of one run.
    pub fn once(value: f64) -> Self {
        Self { median: value, least: value, most: value }
    }

    /// The figure of all values, not rounded. `None` of nothing.
    pub fn of(values: &[f64]) -> Option<Self> {
        let [least, most] = spread(values)?;
        Some(Self { median: median(values)?, least, most })
    }

    /// The figure with each part changed.
    pub fn map(self, change: impl Fn(f64) -> f64) -> Self {
        Self { median: change(self.median), least: change(self.least), most: change(self.most) }
    }
}

/// The median alone, with the digits that the format asks for.
impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.median.fmt(f)
    }
}

impl From<Measured> for f64 {
    fn from(measured: Measured) -> Self {
        measured.median
    }
}

/// The middle value, or the mean of the two middle ones. `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(sorted[sorted.len() / 2 - 1], upper) })
}

/// The mean of the middle half of the values: as robust to outliers as the median, and finer than
/// the clock's own steps. `None` of nothing.
pub fn midmean(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = sorted.len() / 4;
    let middle = &sorted[cut..sorted.len() - cut];
    (!middle.is_empty()).then(|| middle.iter().sum::<f64>() / middle.len() as f64)
}

/// The least and the greatest value. `None` of nothing.
pub fn spread(values: &[f64]) -> Option<[f64; 2]> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let greatest = values.iter().copied().max_by(f64::total_cmp)?;
    Some([least, greatest])
}

/// The median of one figure of all samples. `None` of nothing.
pub fn median_of<T>(samples: &[T], figure: impl Fn(&T) -> f64) -> Option<f64> {
    median(&samples.iter().map(figure).collect::<Vec<_>>())
}

/// The rounded figure of all values. `None` of nothing.
pub fn middle(values: &[f64]) -> Option<Measured> {
    Measured::of(values).map(|measured| measured.map(round))
}

/// The rounded figure of all samples. `None` of nothing.
pub fn middle_of<T>(samples: &[T], figure: impl Fn(&T) -> f64) -> Option<Measured> {
    middle(&samples.iter().map(figure).collect::<Vec<_>>())
}

/// Rounds to three digits after the point: further digits are noise.
pub fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The median of each percentile over several runs.
pub fn median_percentiles(runs: &[Percentiles]) -> Option<Percentiles> {
    let of = |pick: fn(&Percentiles) -> f64| median_of(runs, pick);
    Some(Percentiles { p50: of(|p| p.p50)?, p99: of(|p| p.p99)?, p999: of(|p| p.p999)? })
}

/// The geometric mean, the mean for rates of different kinds. Zero of nothing.
pub fn geometric_mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some([1.0, 3.0]));
        assert_eq!((spread(&[]), middle(&[])), (None, None));
        let third = Measured { median: 0.667, least: 0.333, most: 1.0 };
        assert_eq!(middle_of(&[3, 1, 2], |third| f64::from(*third) / 3.0), Some(third));
        assert_eq!(midmean(&[1000.0, 2.0, 4.0, 0.0]), Some(3.0));
        assert_eq!((midmean(&[7.0]), midmean(&[])), (Some(7.0), None));
    }

    #[test]
    fn percentiles_are_taken_one_by_one() {
        let p = |p50, p99, p999| Percentiles { p50, p99, p999 };
        let runs = [p(1.0, 9.0, 30.0), p(2.0, 7.0, 10.0), p(3.0, 8.0, 20.0)];
        assert_eq!(median_percentiles(&runs), Some(p(2.0, 8.0, 20.0)));
        assert_eq!(median_percentiles(&[]), None);
        assert!((geometric_mean(&[1.0, 4.0]) - 2.0).abs() < 1e-12);
    }
}
