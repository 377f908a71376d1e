"""All figures, as Vega-Lite: one specification makes what the page shows and the files in figures/."""
