//! Bars with their spread, as SVG inside a page. Pure.
//!
//! Own code, because a page that refers to nothing outside needs only a few rectangles and texts.
//! This module must never draw a bar of a figure that was neither measured nor published.

use std::fmt::Write;

use super::escaped;

/// The source of a figure. The colours can be told apart without colour vision, and each bar is
/// named besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Published, of another machine.
    Published,
    /// The baseline to beat, on this machine.
    Baseline,
    /// The kernel on this machine.
    Kernel,
    /// Pagoda on this machine.
    Pagoda,
}

impl Side {
    pub const ALL: [Self; 4] = [Self::Published, Self::Baseline, Self::Kernel, Self::Pagoda];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Published => "published, another machine",
            Self::Baseline => "baseline, this machine",
            Self::Kernel => "kernel, this machine",
            Self::Pagoda => "Pagoda, this machine",
        }
    }

    pub const fn colour(self) -> &'static str {
        match self {
            Self::Published => "#999999",
            Self::Baseline => "#56b4e9",
            Self::Kernel => "#e69f00",
            Self::Pagoda => "#009e73",
        }
    }
}

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    pub label: String,
    pub side: Side,
    pub value: f64,
    /// The least and the greatest of the values behind the median.
    pub spread: Option<[f64; 2]>,
}

/// One plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    pub title: String,
    /// The unit of the numbers, and which way is better.
    pub unit: &'static str,
    pub bars: Vec<Bar>,
}

const WIDTH: f64 = 800.0;
/// The left end of the bars; about forty letters fit before it.
const LEFT: f64 = 290.0;
/// The length of the longest bar or spread; the number stands behind it.
const LONGEST: f64 = 350.0;
const STEP: f64 = 22.0;
const BAR: f64 = 14.0;

impl Chart {
    /// Draws the plot; empty if it has no bars.
    pub fn svg(&self) -> String {
        let ends = |bar: &Bar| bar.spread.map_or(bar.value, |[_, most]| most.max(bar.value));
        let most = self.bars.iter().map(ends).fold(0.0, f64::max);
        if self.bars.is_empty() {
            return String::new();
        }
        let x = |value: f64| if most > 0.0 { LEFT + LONGEST * (value.max(0.0) / most) } else { LEFT };
        let height = STEP * self.bars.len() as f64 + 8.0;
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\
             <title>{}, {}</title>",
            escaped(&self.title),
            escaped(self.unit)
        );
        for (at, bar) in self.bars.iter().enumerate() {
            let top = 4.0 + STEP * at as f64;
            let (middle, text) = (top + STEP / 2.0, top + STEP / 2.0 + 4.0);
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>\
                 <rect x=\"{LEFT:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{}\"/>",
                LEFT - 8.0,
                escaped(&bar.label),
                middle - BAR / 2.0,
                x(bar.value) - LEFT,
                bar.side.colour(),
            );
            let mut says = number(bar.value);
            if let Some([least, greatest]) = bar.spread {
                let (from, to) = (x(least), x(greatest));
                let _ = write!(
                    svg,
                    "<path d=\"M{from:.1} {middle:.1}H{to:.1}M{from:.1} {:.1}v8M{to:.1} {:.1}v8\" class=\"spread\"/>",
                    middle - 4.0,
                    middle - 4.0,
                );
                says += &format!(" ({} to {})", number(least), number(greatest));
            }
            let _ = write!(svg, "<text x=\"{:.1}\" y=\"{text:.1}\">{says}</text>", x(ends(bar)) + 6.0);
        }
        svg + "</svg>"
    }
}

/// A number with three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(value: f64, spread: Option<[f64; 2]>) -> Bar {
        Bar { label: "a <b>".to_owned(), side: Side::Pagoda, value, spread }
    }

    #[test]
    fn the_longest_is_as_long_as_there_is_room_and_all_others_in_proportion() {
        let bars = vec![bar(5.0, None), bar(8.0, Some([6.0, 10.0])), bar(0.0, None), bar(-1.0, None)];
        let svg = Chart { title: "t".to_owned(), unit: "s", bars }.svg();
        for part in [
            "width=\"175.0\"",
            "width=\"280.0\"",
            "M500.0 37.0H640.0",
            "width=\"0.0\"",
            "8.00 (6.00 to 10.0)",
        ] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        assert!(svg.contains("a &lt;b&gt;") && !svg.contains("<b>"), "{svg}");
    }

    #[test]
    fn no_bars_are_no_plot_and_zeros_divide_by_nothing() {
        let chart = |bars| Chart { title: String::new(), unit: "", bars }.svg();
        assert_eq!(chart(Vec::new()), "");
        let zero = chart(vec![bar(0.0, Some([0.0, 0.0]))]);
        assert!(!zero.contains("NaN") && zero.contains("0.00"), "{zero}");
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in
            [(1234.5, "1234"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123"), (0.0, "0.00")]
        {
            assert_eq!(number(value), text);
        }
    }
}
