"""A report's page as HTML: text, tables and drawings in one file. A browser opens it without a network."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from streamfl.simulation.drawing import colours_of, svg
from streamfl.simulation.page import Chart, Page, Table

__all__ = ["html"]

# The browser fetches nothing and runs nothing, whatever text comes from a topic.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c2126; --soft: #5b6570; --rule: #dfe3e8;
  --card: #f7f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --ink: #e6e9ec; --soft: #9aa5b1; --rule: #333a41; --card: #1b1f23; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1400px; padding: 24px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6em; margin: 0 0 .2em; } h2 { font-size: 1.05em; margin: 0 0 .2em; }
p { margin: .3em 0; } .soft, .says { color: var(--soft); max-width: 75em; } .says { font-size: .92em; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(160px, 1fr)); gap: 12px;
  margin: 20px 0; }
.figure { background: var(--card); border: 1px solid var(--rule); border-radius: 6px; padding: 10px 14px;
  overflow-wrap: anywhere; }
.figure b { display: block; font-size: 1.3em; font-weight: 600; line-height: 1.35; }
.figure span { color: var(--soft); font-size: .9em; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 20px; }
section { display: flex; flex-direction: column; min-width: 0; break-inside: avoid; padding: 14px 16px;
  border: 1px solid var(--rule); border-radius: 6px; }
svg { width: 100%; height: auto; display: block; }
section > svg { margin-top: auto; }
svg text { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--rule); }
.curve { fill: none; stroke-linecap: round; stroke-linejoin: round; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; margin: .5em 0; padding: 0; list-style: none;
  font-size: .9em; }
.legend svg { width: 26px; height: 10px; display: inline-block; vertical-align: middle; margin-right: 6px; }
.wide { overflow-x: auto; margin-top: 20px; } table { border-collapse: collapse; font-size: .92em; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
.notes { color: var(--soft); margin: 20px 0; padding-left: 1.2em; }
"""


def html(page: Page) -> str:
    """The text of the whole file."""
    return "\n".join(_parts(page)) + "\n"


def _parts(page: Page) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(page.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>"
    yield f'<h1>{escape(page.title)}</h1>\n<p class="soft">{escape(page.said)}</p>'
    if page.figures:
        tiles = [
            f'<div class="figure"><span>{escape(name)}</span><b>{escape(value)}</b></div>'
            for name, value in page.figures
        ]
        yield f'<div class="figures">{"".join(tiles)}</div>'
    if page.notes:
        yield f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in page.notes)}</ul>'
    if page.charts:
        yield f'<div class="charts">{"".join(_section(chart) for chart in page.charts)}</div>'
    for table in page.tables:
        yield _table(table)
    yield "</body>\n</html>"


def _section(chart: Chart) -> str:
    legend = (
        "" if chart.bars or len(chart.lines) < 2 else f'<ul class="legend">{"".join(_legend(chart))}</ul>'
    )
    axis = "" if chart.bars else f'<p class="says">{escape(chart.vertical)}</p>'
    return (
        f"<section><h2>{escape(chart.title)}</h2><p "
        f'class="says">{escape(chart.says)}</p>{legend}{axis}{svg(chart)}</section>'
    )


def _legend(chart: Chart) -> Iterator[str]:
    for name, colour, dash in colours_of(chart):
        if chart.stacked:
            mark = f'<rect width="26" height="10" fill="{colour}" fill-opacity="0.75"/>'
        else:
            dashed = f' stroke-dasharray="{dash}"' if dash else ""
            mark = f'<line x1="0" x2="26" y1="5" y2="5" stroke="{colour}" stroke-width="3"{dashed}/>'
        yield f'<li><svg viewBox="0 0 26 10" aria-hidden="true">{mark}</svg>{escape(name)}</li>'


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    body = (
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if table.rows else "<p>none</p>"
    )
    return f'<section class="wide"><h2>{escape(table.title)}</h2>{body}</section>'
