"""Pictures of a graph: `.svg`, `.html` to move about in, `.dot` for other programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from foregrad.core.spec import Spec
from foregrad.graph.layout import Box, Layout, lay_out
from foregrad.graph.memory import bytes_text
from foregrad.graph.vertices import Vertex, vertices_of

#: More boxes than this are no picture any more, and take minutes to arrange.
_MOST = 3000

_FONT, _LINE, _LETTER, _PADDING = 12, 16.0, 7.4, 10.0
_LONGEST = 44  # letters in a line; longer ones are cut in the middle
_COLORS = ("#dbe9f6", "#fde7d3", "#e2f0d9", "#eadff2", "#fff3c4", "#d9efee", "#f8dce4", "#e8e4da")
_LEAF, _PLAIN = "#f2f2f2", "#ffffff"

Line = tuple[str, str]  # the class of the style, and the text


def render(outputs: Any, path: str | os.PathLike[str]) -> Path:
    """Draw the graph behind some outputs, or a program, to a `.svg`, `.html` or `.dot` file; returns its path.

    A box has the name of the node, its module (if `track_modules` was on) and what it saves; arrows go where gradients
    go, in a program where values go. Boxes of one color belong to one module.
    """
    path = Path(path)
    write = _WRITERS.get(path.suffix)
    if write is None:
        raise ValueError(f"render writes {', '.join(_WRITERS)} files, given {path.name!r}")
    path.write_text(write(vertices_of(outputs)), encoding="utf-8")
    return path


def _svg(vertices: list[Vertex]) -> str:
    if len(vertices) > _MOST:
        raise ValueError(
            f"a picture of {len(vertices):,} nodes cannot be read: "
            "draw a part of the graph, from an output further inside, or write a .dot file"
        )
    lines = [_lines(vertex) for vertex in vertices]
    layout = lay_out([_size(one) for one in lines], [vertex.following for vertex in vertices])
    colors = _colors(vertices)
    margin = 20.0
    size = f'width="{layout.width + 2 * margin:.0f}" height="{layout.height + 2 * margin:.0f}"'
    view = f'viewBox="{-margin} {-margin} {layout.width + 2 * margin:.1f} {layout.height + 2 * margin:.1f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view}>',
            _STYLE,
            f'<rect x="{-margin}" y="{-margin}" width="100%" height="100%" fill="white"/>',
            *_arrows(layout),
            *(
                _box(box, vertex, text, colors[i])
                for i, (box, vertex, text) in enumerate(zip(layout.boxes, vertices, lines))
            ),
            "</svg>",
            "",
        ]
    )


def _lines(vertex: Vertex) -> list[Line]:
    spec = ", ".join(map(_short, vertex.specs))
    lines = [("name", vertex.name)]
    lines += [("spec", spec)] if spec else []
    lines += [("module", vertex.module)] if vertex.module and vertex.kind == "node" else []
    for one in vertex.saved:
        place = f" on {one.place}" if one.policy else ""
        text = f"{one.name} {_short(one.spec)}" if one.spec is not None else one.name
        lines.append(("saved", f"saves {text}, {bytes_text(one.num_bytes)}{place}"))
    return [(style, _cut(text)) for style, text in lines]


def _short(spec: Spec) -> str:
    """Without strides: these are in the text that a pointer over the box shows."""
    return str(spec).partition(" stride ")[0]


def _cut(text: str) -> str:
    half = _LONGEST // 2 - 1
    return text if len(text) <= _LONGEST else f"{text[:half]}…{text[-half:]}"


def _size(lines: list[Line]) -> tuple[float, float]:
    return max(len(text) for _, text in lines) * _LETTER + 2 * _PADDING, len(lines) * _LINE + _PADDING


def _colors(vertices: list[Vertex]) -> list[str]:
    """Modules that stand side by side have one color each, those inside them the same."""
    paths = {tuple(vertex.module.split(".")) for vertex in vertices if vertex.module}
    depth = 0  # of what all paths begin with
    while len(paths) > 1 and len({path[: depth + 1] for path in paths}) == 1:
        depth += 1
    groups: dict[str, str] = {}
    colors = []
    for vertex in vertices:
        rest = vertex.module.split(".")[depth:] if vertex.module else []
        if rest:
            group = ".".join(rest[:2] if rest[1:] and rest[1].isdigit() else rest[:1])  # each of a list has its own
            colors.append(groups.setdefault(group, _COLORS[len(groups) % len(_COLORS)]))
        else:
            colors.append(_LEAF if vertex.kind == "leaf" else _PLAIN)
    return colors


def _box(box: Box, vertex: Vertex, lines: list[Line], color: str) -> str:
    x, corner = box.x - box.width / 2, 10 if vertex.kind == "leaf" else 2
    first = box.top + _PADDING / 2 + 0.75 * _LINE
    size = f'width="{box.width:.1f}" height="{box.height:.1f}"'
    return "".join(
        [
            f'<g class="{vertex.kind} {vertex.phase}"><title>{escape(vertex.text())}</title>',
            f'<rect x="{x:.1f}" y="{box.top:.1f}" {size} rx="{corner}" fill="{color}"/>',
            *(
                f'<text class="{style}" x="{box.x:.1f}" y="{first + i * _LINE:.1f}">{escape(text)}</text>'
                for i, (style, text) in enumerate(lines)
            ),
            "</g>",
        ]
    )


def _arrows(layout: Layout) -> list[str]:
    marks = []
    for first, last, points in layout.edges:
        path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
        for i, (x, y) in enumerate(points[1:], start=1):
            before = points[i - 1]
            middle = (before[1] + y) / 2
            is_straight = before[0] == x
            path += (
                f" L{x:.1f},{y:.1f}"
                if is_straight
                else (f" C{before[0]:.1f},{middle:.1f} {x:.1f},{middle:.1f} {x:.1f},{y:.1f}")
            )
        marks.append(f'<path class="edge" data-from="{first}" data-to="{last}" d="{path}" marker-end="url(#tip)"/>')
    return marks


def _html(vertices: list[Vertex]) -> str:
    return _PAGE.replace("PICTURE", _svg(vertices))


def _dot(vertices: list[Vertex]) -> str:
    colors = _colors(vertices)
    lines = ["digraph {", '  node [shape=box, style="filled", fontname="monospace", fontsize=10];']
    for number, vertex in enumerate(vertices):
        label = "\\n".join(text.replace("\\", "\\\\").replace('"', '\\"') for _, text in _lines(vertex))
        shape = ', style="filled,rounded"' if vertex.kind == "leaf" else ""
        lines.append(f'  n{number} [label="{label}", fillcolor="{colors[number]}"{shape}];')
    lines += [f"  n{number} -> n{target};" for number, vertex in enumerate(vertices) for target in vertex.following]
    return "\n".join([*lines, "}", ""])


_WRITERS: dict[str, Callable[[list[Vertex]], str]] = {".svg": _svg, ".html": _html, ".dot": _dot}

_STYLE = f"""<style>
text {{ font: {_FONT}px "DejaVu Sans Mono", Menlo, Consolas, monospace; text-anchor: middle; fill: #222; }}
.name {{ font-weight: bold; }} .module {{ fill: #3b5b8c; }} .spec {{ fill: #666; }} .saved {{ fill: #9a4a00; }}
rect {{ stroke: #999; }} .edge {{ fill: none; stroke: #888; stroke-width: 1.2; }}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0,0 L8,4 L0,8 z" fill="#888"/></marker></defs>"""

_PAGE = """<!doctype html>
<meta charset="utf-8"><title>autograd graph</title>
<style>
body { margin: 0; font-family: sans-serif; } svg { cursor: grab; }
#bar { position: fixed; top: 8px; left: 8px; background: white; padding: 4px; z-index: 1; }
.dim { opacity: 0.15; } .near { stroke: #c00 !important; stroke-width: 2.5 !important; }
</style>
<div id="bar"><input id="find" placeholder="name or module"> drag to move, wheel to zoom</div>
PICTURE
<script>
const svg = document.querySelector("svg"), view = svg.viewBox.baseVal, boxes = [...svg.querySelectorAll("g")];
svg.setAttribute("width", "100%"); svg.style.height = "100vh";
svg.onwheel = event => {
  event.preventDefault();
  const scale = event.deltaY > 0 ? 1.15 : 1 / 1.15, area = svg.getBoundingClientRect();
  view.x += view.width * (1 - scale) * event.offsetX / area.width;
  view.y += view.height * (1 - scale) * event.offsetY / area.height;
  view.width *= scale; view.height *= scale;
};
svg.onpointermove = event => {
  if (!event.buttons) return;
  const scale = 1 / svg.getScreenCTM().a;
  view.x -= event.movementX * scale; view.y -= event.movementY * scale;
};
boxes.forEach((box, number) => {
  const mark = is => svg.querySelectorAll(`[data-from="${number}"], [data-to="${number}"]`)
    .forEach(edge => edge.classList.toggle("near", is));
  box.onpointerenter = () => mark(true); box.onpointerleave = () => mark(false);
});
document.getElementById("find").oninput = event => boxes.forEach(box => box.classList.toggle(
  "dim", !box.textContent.toLowerCase().includes(event.target.value.toLowerCase())));
</script>
"""
