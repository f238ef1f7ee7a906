//! A run as a picture: replicas ordered and ready, and the requests that wait, on one axis of time.

use plotters::prelude::*;

use super::outcome::Outcome;

const SIZE: (u32, u32) = (900, 420);
const ORDERED: RGBColor = RGBColor(0, 114, 178);
const READY: RGBColor = RGBColor(0, 158, 115);
const WAITING: RGBColor = RGBColor(213, 94, 0);

/// An SVG of `outcome`.
///
/// # Errors
/// When nothing can be drawn of it.
pub fn svg(title: &str, outcome: &Outcome) -> anyhow::Result<String> {
    let mut text = String::new();
    draw(&mut text, title, outcome).map_err(|error| anyhow::anyhow!("chart {title}: {error}"))?;
    Ok(text)
}

fn draw(
    text: &mut String,
    title: &str,
    outcome: &Outcome,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = &outcome.points;
    let minutes = |seconds: f64| seconds / 60.0;
    let span = |at: Option<&super::outcome::Point>| minutes(at.map_or(0.0, |point| point.at));
    let time = span(points.first())..span(points.last()).max(1.0);
    let replicas = 0.0..f64::from(outcome.peak.max(1)) * 1.15;
    let most = points.iter().map(|point| point.waiting).fold(10.0, f64::max) * 1.15;
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .right_y_label_area_size(56)
        .build_cartesian_2d(time.clone(), replicas)?
        .set_secondary_coord(time, 0.0..most);
    chart
        .configure_mesh()
        .x_desc("minutes")
        .y_desc("replicas")
        .light_line_style(TRANSPARENT)
        .draw()?;
    chart.configure_secondary_axes().y_desc("requests waiting").draw()?;
    let waiting = points.iter().map(|point| (minutes(point.at), point.waiting));
    chart
        .draw_secondary_series(LineSeries::new(waiting, WAITING.stroke_width(1)))?
        .label("waiting")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], WAITING.stroke_width(2)));
    let ordered = points.iter().map(|point| (minutes(point.at), f64::from(point.ordered)));
    chart
        .draw_series(LineSeries::new(ordered, ORDERED.stroke_width(2)))?
        .label("ordered")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], ORDERED.stroke_width(2)));
    let ready = points.iter().map(|point| (minutes(point.at), f64::from(point.ready)));
    chart
        .draw_series(LineSeries::new(ready, READY.stroke_width(2)))?
        .label("ready")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], READY.stroke_width(2)));
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}
