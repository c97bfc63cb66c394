"""draw_timeline draws the times of a trace, readable on light and dark pages."""

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from tutorlib.profiling import draw_timeline


def contrast(colour, background):
    """Contrast of two colours as the Web's accessibility guidelines define it."""

    def luminance(colour):
        parts = np.array(to_rgb(colour))
        linear = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    light, dark = sorted([luminance(colour), luminance(background)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_a_timeline_has_a_row_for_each_kind_of_work_and_its_times_in_ms(gpu_trace):
    (axes,) = draw_timeline(gpu_trace).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["GPU:0, kernels", "GPU:0, copies", "waiting for data"]
    assert axes.get_xlabel() == "time, ms"
    assert axes.get_xlim() == (0, 100)
    widths = [sum(np.ptp(path.vertices[:, 0]) for path in row.get_paths()) for row in
              axes.collections]  # fmt: skip
    assert widths == pytest.approx([30, 10, 40], abs=0.5)
    assert [text.get_text().strip() for text in axes.texts] == ["step 0", "step 1"]


def test_a_timeline_reads_on_light_and_dark_pages(starved, tmp_path):
    figure = draw_timeline(starved, None)
    (axes,) = figure.axes
    texts = [axes.xaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts]
    colours = {text.get_color() for text in texts}
    colours |= {tuple(row.get_facecolor()[0][:3]) for row in axes.collections}
    for colour in colours:
        assert min(contrast(colour, "white"), contrast(colour, "#0d1117")) > 2.5
    figure.savefig(tmp_path / "timeline.png")
    corner = matplotlib.image.imread(tmp_path / "timeline.png")[0, 0]
    assert corner[3] == 0  # the background is transparent


def test_a_timeline_draws_the_last_steps_into_given_axes(starved):
    axes = Figure().subplots()
    assert draw_timeline(starved, 2, axes=axes) is axes.figure
    spans = list(starved.steps.values())[-2:]
    assert axes.get_xlim()[1] == pytest.approx(spans[1][1] - spans[0][0])
    with pytest.raises(ValueError, match="steps must be at least 1"):
        draw_timeline(starved, 0)
