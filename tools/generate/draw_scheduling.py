#!/usr/bin/env python3
"""Draws docs/scheduling.svg from the points of bench/scheduler_sim.

    build/scheduler_sim_bench --sweep POINTS
    tools/generate/draw_scheduling.py POINTS docs/scheduling.svg

One panel a scenario: the share of requests within the bounds (upwards) over the arrival rate. Standard library only.
"""
import argparse
import json
import pathlib
from xml.sax.saxutils import escape

COLOURS = {"FCFS": "#8c6d31", "FastDeploy": "#d62728", "vLLM": "#1f77b4", "reserving": "#9a9a9a", "ours": "#2ca02c"}
TITLES = {"chats": "chats with shared system prompts", "mixed": "mixed lengths", "bursts": "bursts with documents",
          "scarce": "mixed lengths, few KV blocks", "behind": "short prompts behind long ones"}
WIDTH, HEIGHT = 380, 230
LEFT, TOP, RIGHT, BOTTOM = 46, 30, 14, 40


def read_points(path):
    """{scenario: {policy: [(rate, share)]}}, in the file's order."""
    panels = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        point = json.loads(line)
        lines = panels.setdefault(point["scenario"], {})
        lines.setdefault(point["policy"], []).append((point["rate"], point["good_share"]))
    return panels


def text(x, y, what, **attributes):
    more = "".join(f' {k.replace("_", "-")}="{v}"' for k, v in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(what)}</text>'


def draw_panel(x0, y0, title, lines):
    most = max(rate for points in lines.values() for rate, _ in points)
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(rate, share):
        return x0 + LEFT + inner_w * rate / most, y0 + TOP + inner_h * (1 - share)
    out = [text(x0 + LEFT, y0 + 18, title, font_weight="bold")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        x, y = place(0, share)
        out.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + inner_w:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(text(x - 6, y + 4, f"{100 * share:.0f} %", text_anchor="end"))
    for i in range(5):
        x, y = place(most * i / 4, 0)
        out.append(text(x, y + 16, f"{most * i / 4:g}", text_anchor="middle"))
    out.append(text(x0 + LEFT + inner_w / 2, y0 + HEIGHT - 8, "requests a second", text_anchor="middle"))
    for policy, points in lines.items():
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*p) for p in sorted(points)))
        width = 3 if policy == "ours" else 1.6
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[policy]}" stroke-width="{width}"/>')
        for x, y in (place(*p) for p in points):
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{width + 0.6:.1f}" fill="{COLOURS[policy]}"/>')
    return out


def draw(panels):
    columns = 2
    rows = -(-len(panels) // columns)
    width, height = columns * WIDTH, rows * HEIGHT + 34
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
           'font-size="11">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for i, (scenario, lines) in enumerate(panels.items()):
        out += draw_panel(i % columns * WIDTH, i // columns * HEIGHT, TITLES.get(scenario, scenario), lines)
    x = LEFT
    for policy in next(iter(panels.values())):
        y = rows * HEIGHT + 18
        out.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 24}" y2="{y - 4}" stroke="{COLOURS[policy]}" '
                   f'stroke-width="{3 if policy == "ours" else 1.6}"/>')
        out.append(text(x + 30, y, policy))
        x += 130
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("points", type=pathlib.Path)
    parser.add_argument("picture", type=pathlib.Path)
    args = parser.parse_args()
    args.picture.write_text(draw(read_points(args.points)), encoding="utf-8")


if __name__ == "__main__":
    main()
