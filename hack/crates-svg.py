#!/usr/bin/env python3
"""Draws docs/crates.svg: every crate, and an arrow to each crate that it depends on, as the manifests say.
`hack/docs.sh` compares the file with a fresh drawing and fails if they differ. The positions are chosen here."""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HEIGHT, BOX_W, BOX_H = 1150, 515, 150, 34
# Never part of the binary.
TEST_ONLY = ("fakes/digitalocean", "testkit", "e2e")
# Centre of each box.
PLACES = {
    "wharf": (490, 30), "upstream-flags": (200, 30), "explain": (200, 110), "sidecar": (370, 110), "node": (540, 110),
    "drivers/local": (730, 110), "drivers/digitalocean": (900, 110), "drivers/nfs": (1070, 110),
    "controllers": (90, 200), "apiserver": (480, 200), "container": (650, 200), "driver": (840, 200), "fakes/digitalocean": (900, 290),
    "backup": (440, 290),
    "cluster": (210, 290), "model": (330, 380), "csi": (590, 380), "linux": (790, 380), "testkit": (90, 440), "e2e": (90, 485),
}
COLORS = {
    "explain": "#8250df", "sidecar": "#0969da", "node": "#cf222e", "container": "#cf222e", "controllers": "#8250df", "cluster": "#57606a",
    "apiserver": "#57606a", "driver": "#1a7f37", "drivers/local": "#1a7f37", "drivers/digitalocean": "#1a7f37", "drivers/nfs": "#1a7f37",
    "fakes/digitalocean": "#9a6700", "upstream-flags": "#0969da", "backup": "#9a6700",
}


def dependencies():
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
    for manifest in sorted(ROOT.glob("crates/**/Cargo.toml")):
        crate = str(manifest.parent.relative_to(ROOT / "crates"))
        needed = tomllib.loads(manifest.read_text()).get("dependencies", {})
        yield crate, sorted(workspace[name]["path"].removeprefix("crates/") for name in needed if name.startswith("wharf-"))


def arrow(start, end, color):
    (x1, y1), (x2, y2) = start, end
    if y1 == y2:
        side = 1 if x2 > x1 else -1
        x1, x2 = x1 + side * BOX_W / 2, x2 - side * (BOX_W / 2 + 4)
    else:
        # The end points depend on the position of the other box, so that lines rarely overlap.
        lean = max(-1, min(1, (x2 - x1) / 400)) * BOX_W * 0.4
        x1, y1, x2, y2 = x1 + lean, y1 + BOX_H / 2, x2 - lean, y2 - BOX_H / 2 - 4
    return f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="{color}" marker-end="url(#{color[1:]})"/>'


def draw():
    graph = dict(dependencies())
    missing = graph.keys() ^ PLACES.keys()
    if missing:
        sys.exit(f"crates-svg.py: give these crates a place, or remove them: {', '.join(sorted(missing))}")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="14">',
        "<title>Crates and their dependencies</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        "<defs>",
    ]
    for color in sorted(set(COLORS.values())):
        lines.append(
            f'<marker id="{color[1:]}" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0,0 L8,4 L0,8 z" fill="{color}"/></marker>'
        )
    lines.append("</defs>")
    lines.append('<g stroke-width="1.5" fill="none">')
    for crate, needed in graph.items():
        # These depend on nearly all other crates: a note lists the dependencies instead of arrows.
        if crate not in ("wharf", "testkit", "e2e"):
            lines += [arrow(PLACES[crate], PLACES[other], COLORS[crate]) for other in needed]
    lines.append("</g>")
    for crate, (x, y) in PLACES.items():
        left, top = x - BOX_W / 2, y - BOX_H / 2
        lines.append(
            f'<rect x="{left:.0f}" y="{top:.0f}" width="{BOX_W}" height="{BOX_H}" rx="5" fill="#f6f8fa" stroke="#57606a"/>'
            f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="#1f2328">{crate}</text>'
        )
    every = set(graph) - {"wharf", *TEST_ONLY}
    note = f"all others, except {', '.join(TEST_ONLY)}" if set(graph["wharf"]) == every else ", ".join(graph["wharf"])
    lines.append(f'<text x="575" y="35" fill="#57606a">→ {note}</text>')
    lines.append(f'<text x="175" y="445" fill="#57606a">→ {", ".join(graph["testkit"])}; only for tests</text>')
    lines.append(f'<text x="175" y="490" fill="#57606a">→ {", ".join(graph["e2e"])}; only tests</text>')
    lines.append("</svg>\n")
    return "\n".join(lines)


text, path = draw(), ROOT / "docs" / "crates.svg"
if sys.argv[1:] == ["check"]:
    if text != path.read_text():
        sys.exit("docs/crates.svg is not what the manifests say: run hack/crates-svg.py")
else:
    path.write_text(text)
