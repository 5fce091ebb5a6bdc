"""The style sheet of all pages: light and dark, wide and narrow, screen and paper."""

HUES = ("#2f6fd0", "#d9480f", "#2b8a3e", "#862e9c", "#c2255c", "#0b7285", "#8d6e00", "#5f6b7a")
"""Colours of what shares a plot: classes ``c0`` to ``c7`` of lines, points, bands and the keys of a legend."""
DARK_HUES = ("#6ea8fe", "#ff9248", "#69db7c", "#cf94e6", "#ff86b5", "#3bc9db", "#e3bd4f", "#aeb8c6")
"""The same on dark pages, where the others can hardly be told from the ground."""


def _variables(hues: tuple[str, ...]) -> str:
    return " ".join(f"--c{k}: {hue};" for k, hue in enumerate(hues))


_COLOURS = "".join(
    f".line.c{k}, .seed.c{k}, .point.c{k} {{ stroke: var(--c{k}); }} .key.c{k} {{ background: var(--c{k}); }}\n"
    f".band.c{k} {{ fill: var(--c{k}); fill-opacity: 0.16; }}\n"
    for k in range(len(HUES))
)
_LIGHT = f"""
  --ink: #1c2430; --muted: #5d6877; --line: #d9dee5; --page: #f5f6f8; --card: #ffffff;
  --accent: #2f6fd0; --soft: #2f6fd033; --shade: #0003; --good: #1d7f4e; --warn: #a15c00; --bad: #b3261e;
  {_variables(HUES)}
"""
_DARK = f"""
    --ink: #e5e9ef; --muted: #9aa6b5; --line: #343c47; --page: #14181e; --card: #1d232b;
    --accent: #6ea8fe; --soft: #6ea8fe33; --shade: #0009; --good: #5ecb94; --warn: #f0b352; --bad: #ff8a80;
    {_variables(DARK_HUES)}
"""
_GROUNDS = (
    f":root {{ color-scheme: light dark; {_LIGHT} }}\n.paper {{ {_LIGHT} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}\n"
)
"""Colours on light and on dark pages; ``paper``: those of pictures in files of their own."""

_RULES = """
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1160px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 32px 0 10px; }
h3 { font-size: 14px; margin: 14px 0 6px; font-weight: 600; overflow-wrap: anywhere; }
p { margin: 6px 0; overflow-wrap: anywhere; }
.muted, .note { color: var(--muted); }
.note { font-size: 13px; }
code { font: 13px/1.4 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(148px, 1fr)); gap: 10px; margin: 18px 0; }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.tile { padding: 10px 14px; }
.tile b { display: block; font-size: 22px; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tile span { color: var(--muted); font-size: 13px; display: block; overflow-wrap: anywhere; }
.card { padding: 12px 14px; min-width: 0; }
.card + .card, .card + .grid2, .card + .grid3, .grid2 + .card, .grid3 + .card { margin-top: 12px; }
.card h3 { margin-top: 0; }
.grid2 .card, .grid3 .card { margin-top: 0; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 400px), 1fr)); gap: 12px;
  align-items: start; }
.grid3 { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); gap: 12px; }
ul.checks { list-style: none; margin: 0; padding: 0; }
ul.checks li { display: grid; grid-template-columns: 78px 1fr; gap: 10px; padding: 5px 0; overflow-wrap: anywhere; }
ul.checks li + li { border-top: 1px solid var(--line); }
.good, .warn, .bad, .unknown { font-weight: 600; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.unknown { color: var(--muted); }
.scroll { overflow-x: auto; background:
    linear-gradient(to right, var(--card) 40%, transparent) left / 28px 100% no-repeat local,
    linear-gradient(to left, var(--card) 40%, transparent) right / 28px 100% no-repeat local,
    linear-gradient(to right, var(--shade), transparent) left / 12px 100% no-repeat scroll,
    linear-gradient(to left, var(--shade), transparent) right / 12px 100% no-repeat scroll, var(--card); }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px; text-align: right; border-top: 1px solid var(--line); white-space: nowrap; }
thead th { border-top: 0; color: var(--muted); font-weight: 600; font-size: 13px; white-space: normal;
  vertical-align: bottom; }
tbody:first-child tr:first-child td { border-top: 0; }
th.l, td.l { text-align: left; }
td.l { white-space: normal; }
td.name { min-width: 130px; }
tbody tr:hover { background: var(--soft); }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--muted); }
.grid { stroke: var(--line); stroke-width: 1; fill: none; }
.axis { stroke: var(--muted); stroke-width: 1; fill: none; }
.bar { fill: var(--accent); }
.point { stroke: var(--accent); stroke-width: 4; stroke-linecap: round; stroke-opacity: 0.5; fill: none; }
.line { stroke: var(--accent); stroke-width: 2; fill: none; stroke-linejoin: round; }
.seed { stroke: var(--accent); stroke-width: 1; stroke-opacity: 0.6; fill: none; stroke-linejoin: round; }
.band { fill: var(--soft); stroke: none; }
.mark { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 3 3; fill: none; }
.map { max-width: 560px; }
.value { fill: var(--ink); }
.narrow { display: none; }
svg.share { height: 22px; border-radius: 4px; overflow: hidden; margin: 8px 0; }
.s0 { background: var(--accent); fill: var(--accent); } .s1 { background: var(--warn); fill: var(--warn); }
.s2 { background: var(--good); fill: var(--good); } .s3 { background: var(--muted); fill: var(--muted); }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
.legend span + span.key { margin-left: 14px; }
.strip { margin: 0 0 16px; }
.shots { display: grid; grid-template-columns: repeat(5, minmax(0, 1fr)); gap: 6px; }
figure { margin: 0; min-width: 0; }
figure img, figure video { display: block; width: 100%; height: auto; border-radius: 4px; background: var(--line); }
figure img.small { image-rendering: pixelated; }
figure video { max-height: 420px; }
figcaption { font-size: 12px; color: var(--muted); text-align: center; }
pre { margin: 0; font: 12px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; }
details > .card, details > .grid3 { margin-top: 10px; }
img.live { display: block; margin: 16px auto; max-width: 100%; max-height: 78vh; min-width: min(640px, 100%);
  image-rendering: pixelated; background: #000; }
p.live { font-family: ui-monospace, monospace; color: var(--muted); white-space: pre-wrap; text-align: center; }
footer { margin-top: 36px; border-top: 1px solid var(--line); padding-top: 10px; }
@media (max-width: 720px) {
  .wide { display: none; } .narrow { display: block; }
}
@media (max-width: 600px) {
  main { padding: 16px 12px 32px; }
  .shots { grid-template-columns: repeat(3, minmax(0, 1fr)); }
  .shots figure:nth-child(even) { display: none; }
  ul.checks li { grid-template-columns: 1fr; gap: 0; }
}
@media print {
  :root {
    color-scheme: light; LIGHT
    --ink: #000; --muted: #444; --line: #bbb; --page: #fff; --card: #fff;
  }
  body { font-size: 12px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  .scroll { overflow: visible; background: none; }
  .card, .tile, .strip, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""

STYLE = _GROUNDS + _RULES.replace("LIGHT", _LIGHT) + _COLOURS

FILE_STYLE = (
    "text{font:11px sans-serif;fill:#555}.grid{stroke:#ddd}.axis{stroke:#888}.mark{stroke:#333;stroke-dasharray:3 3}"
    "path{fill:none}.line{stroke:#2f6fd0;stroke-width:1.6}.seed{stroke:#2f6fd0;stroke-opacity:.6}.point{stroke-width:5;stroke-linecap:round}"
    + "".join(
        f".line.c{k},.point.c{k}{{stroke:{hue}}}.band.c{k}{{fill:{hue};fill-opacity:.16}}text.c{k}{{fill:{hue}}}"
        for k, hue in enumerate(HUES)
    )
)
"""Of plots in files of their own, which programs read that know no more of style sheets than this."""
