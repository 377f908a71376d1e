"""Figures that are curves: over the share stored, steps and time, or the number of GPUs; and densities."""

from collections.abc import Iterator, Sequence

import altair as alt

from benchmarks.analysis.charts import look
from benchmarks.analysis.table import Record

COLOURS = ("#607d8b", "#cc4125", "#0083c4", "#d08f00", "#008f6b", "#8a5a9e")
DASHES = ([1, 0], [6, 3], [8, 3, 2, 3], [2, 2], [12, 3], [4, 2])
SHAPES = ("circle", "square", "triangle-up", "triangle-down", "cross", "diamond")
"""Lines also differ in dash and mark, for grey print and for readers who cannot tell colours apart."""
MOST_LINES = len(COLOURS)
"""Most curves in a panel; the table's CSV has all."""
GROUPS, CELLS = 4, 8
"""Most groups drawn of a cell, evenly spread over the model, and most cells; the table's CSV has all."""
RANGE = 3.0
"""Standard deviations of the group that are shown on either side."""
PUBLISHED_SHAPE, PUBLISHED_COLOUR = look.SERIES[look.PUBLISHED]


def shares_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return Fig. 3: for each model, the metric over the share of the residuals that is stored."""
    rows = []
    for one in records:
        # The share of the residuals that its setting stores.
        x = 100.0 if one["scheme"] == "baseline" else 100 * float(one["options"].get("ratio", 0.5))
        common = {"model": one["model"], "panel": f"{one['model']}\n{_metric(one)}", "x": x}
        for line, column in (("measured", "measured"), (look.PUBLISHED, "published")):
            if one[column] is not None:
                half = one["measured_half_width"] or 0 if column == "measured" else 0
                tip = f"{one['model']}, {x:g} % stored\n{line}: {one[column]:.4g}" + f" ± {half:.2g}" * bool(half)
                ends = {"low": one[column] - half, "high": one[column] + half}
                rows.append(common | ends | {"line": line, "y": one[column], "tip": tip})
    return _curves(rows, "residuals stored, %")


def convergence_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return Fig. 10: for each model, the metric over the steps and over the hours of training."""
    return _curves([row for its in look.by_model(records).values() for row in _over_time(its)], None)


def _over_time(records: Sequence[Record]) -> Iterator[look.Row]:
    shown = [record for record in records if record["curve"] and record["steps_taken"]][:MOST_LINES]
    ends = [one["measured"] for one in shown if one["measured"] is not None]
    # Perplexity begins far above its final value, so only the last part is shown.
    most = 1.6 * max(ends) if ends and shown[0]["higher_is_better"] is False else float("inf")
    for over in ("steps", "hours"):
        for one in shown:
            scale = one["hours"] / one["steps_taken"] if over == "hours" else 1
            panel = f"{one['model']}\n{_metric(one)}, over {over}"
            common = {"model": one["model"], "panel": panel, "line": one["line"]}
            for step, value in one["curve"]:
                tip = f"{one['model']}, {one['line']}\n{_metric(one)}: {value:.4g}\n{over}: {step * scale:.4g}"
                if value <= most:
                    yield common | {"x": step * scale, "y": value, "tip": tip}


TIMED = ("dense", "fp16", "fp16-plain", "block4-two-phase", "baseline", "int4-plain")
"""Systems whose curves over time are drawn; the tables have all."""


def times_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return for each model and rate of the links the metric over the seconds of training."""
    rows = []
    for one in records:
        for step, value in one["curve"] if one["system"] in TIMED else ():
            # Perplexity begins far above its final value, so only the last part is shown.
            if one["higher_is_better"] or value <= 1.6 * one["level"]:
                seconds = step * one["step"]["median"]
                links = one["rate"].replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")
                panel = f"{one['model']}, links of {links}\n{one['metric_name']}, over seconds"
                tip = f"{one['title']}\n{one['metric_name']}: {value:.4g}\nafter {seconds:.4g} s"
                rows.append({"panel": panel, "line": one["title"], "x": seconds, "y": value, "tip": tip})
    return _curves(rows, None)


def steps_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return for each model the metric over the steps of training, of rows as in results/reference/larger.json."""
    rows = []
    for one in records:
        for step, value in one["curve"]:
            tip = f"{one['title']}\n{one['metric_name']}: {value:.4g}\nafter {step:.0f} steps"
            panel = f"{one['model']}\n{one['metric_name']}, over steps"
            rows.append({"panel": panel, "line": one["title"], "x": step, "y": value, "tip": tip})
    return _curves(rows, None, columns=1)


def ranks_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return Fig. 11: for each model, images or tokens per second over the number of ranks."""
    rows = []
    for model, its in look.by_model([one for one in records if one["throughput"] is not None]).items():
        lines = list(dict.fromkeys(one["line"] for one in its))[:MOST_LINES]
        for one in its:
            unit = f"{one['throughput_unit'] or 'samples'} / s"
            tip = f"{model}, {one['line']}\n{one['world_size']} ranks: {one['throughput']:,.4g} {unit}"
            row = {"model": model, "panel": f"{model}\n{unit}", "line": one["line"], "tip": tip}
            if one["line"] in lines:
                rows.append(row | {"x": one["world_size"], "y": one["throughput"]})
    return _curves(rows, "ranks", zero=True)


def densities_chart(records: Sequence[Record]) -> look.Specification | None:
    """Return Fig. 4: for each observed cell some groups side by side, with one line per member."""
    cells: list[list[Record]] = []
    for record in records:
        if record["group"] == "all":
            cells.append([])
        else:
            cells[-1].append(record)
    rows = [row for cell in cells[:CELLS] for group in spread(cell, GROUPS) for row in _density(group)]
    return _curves(rows, "residual / its group's standard deviation", zero=True, columns=GROUPS, dots=False)


def spread(items: list[Record], count: int) -> list[Record]:
    """Return `count` of the items, including the first and the last, or all if there are no more."""
    if len(items) <= count:
        return items
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _density(group: Record) -> Iterator[look.Row]:
    bins = group["bins"]
    width = (bins["high"] - bins["low"]) / bins["count"]
    panel = f"{group['model']}, {group['world_size']} ranks\n{group['group']}: density"
    for number, density in enumerate(group["densities"]):
        for place, value in enumerate(density):
            x = bins["low"] + (place + 0.5) * width
            if abs(x) <= RANGE:
                line = f"member {number}"
                yield {"model": group["model"], "panel": panel, "line": line, "x": round(x, 4), "y": value}


def _curves(
    rows: list[look.Row], title: str | None, *, zero: bool = False, columns: int = 2, dots: bool = True
) -> look.Specification | None:
    if not rows:
        return None
    names = [name for name in dict.fromkeys(row["line"] for row in rows) if name != look.PUBLISHED]
    styles = {name: place % MOST_LINES for place, name in enumerate(names)}
    domain = [*names, look.PUBLISHED] if any(row["line"] == look.PUBLISHED for row in rows) else names
    colours = [*(COLOURS[one] for one in styles.values()), PUBLISHED_COLOUR][: len(domain)]
    base = alt.Chart().encode(
        x=alt.X("x:Q", title=title).scale(zero=False, nice=dots, padding=look.NEAR if dots else 0),
        y=alt.Y("y:Q", title=None, axis=alt.Axis(grid=True)).scale(zero=zero),
        color=alt.Color("line:N").scale(domain=domain, range=colours).legend(columns=3),
    )
    dashes = alt.StrokeDash("line:N", legend=None).scale(domain=names, range=[DASHES[one] for one in styles.values()])
    lines = base.transform_filter(f"datum.line != '{look.PUBLISHED}'").mark_line(aria=False).encode(strokeDash=dashes)
    layers = [lines]
    if dots:
        shapes = [*(SHAPES[one] for one in styles.values()), PUBLISHED_SHAPE][: len(domain)]
        shape = alt.Shape("line:N").scale(domain=domain, range=shapes).legend(columns=3)
        layers.append(base.mark_point(size=45, opacity=1).encode(shape=shape, **look.exact()))
    if any("low" in row for row in rows):
        layers.append(alt.Chart().mark_rule(color=look.INK, aria=False).encode(x="x:Q", y="low:Q", y2="high:Q"))
    return look.side_by_side(rows, layers, hides="line", columns=columns, width=380 if columns < GROUPS else 190)


def _metric(record: Record) -> str:
    return str(record["metric_name"] or record["unit"] or "metric")
