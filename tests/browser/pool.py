"""A taxonomy of 2,000 nodes and 500 rows without labels, to start a labelling project from."""

from __future__ import annotations

import random
from pathlib import Path

N_ROWS = 500
SEED = 7
PLACES = (
    "Kitchen", "Garden", "Office", "Bathroom", "Workshop", "Garage", "Nursery", "Bedroom", "Camping", "Sailing",
    "Fishing", "Cycling", "Riding", "Music", "School", "Bakery", "Dairy", "Farm", "Hospital", "Laboratory",
)  # fmt: skip
THINGS = ("knives", "boxes", "lamps", "tables", "brushes", "bags", "gloves", "scales", "chairs")
TRADE_NAMES = ("snorgs", "plinks", "glimmies", "flonks", "brools", "tavets", "minnicks", "wodgers", "squabs")
KINDS = ("Steel", "Wooden", "Plastic", "Leather", "Glass", "Cotton", "Paper", "Rubber", "Ceramic", "Folding")


def taxonomy_lines() -> list[str]:
    """Return the lines of a table: 20 places, 9 things in each, and 10 kinds of each thing."""
    lines = ["node,parent,title"]
    for place, title in enumerate(PLACES, start=1):
        lines.append(f"{place},,{title}")
        for thing, things in enumerate(THINGS, start=1):
            lines.append(f"{place}.{thing},{place},{title} {things}")
            for number, kind in enumerate(KINDS, start=1):
                lines.append(f"{place}.{thing}.{number},{place}.{thing},{kind} {title.lower()} {things}")
    return lines


def titles() -> dict[str, str]:
    """Return the titles of all nodes."""
    return {node: title for node, _, title in (line.split(",") for line in taxonomy_lines()[1:])}


def pool_rows() -> list[tuple[str, str]]:
    """Return the texts of the rows with their right nodes; every third has words that the taxonomy does not have."""
    choose = random.Random(SEED)
    leaves = [line.split(",") for line in taxonomy_lines()[1:] if line.split(",")[0].count(".") == 2]
    rows = []
    for number, (node, _, title) in enumerate(choose.sample(leaves, N_ROWS), start=1):
        kind, place, things = title.lower().split(" ")
        if number % 3 == 0:
            things = TRADE_NAMES[THINGS.index(things)]
        rows.append((f"{things} of model {number}, {kind}, for the {place}", node))
    return rows


def write_pool(folder: Path) -> tuple[Path, Path]:
    """Write the taxonomy and the rows to a folder."""
    taxonomy, rows = folder / "codes.csv", folder / "unlabelled.csv"
    taxonomy.write_text("\n".join(taxonomy_lines()), encoding="utf-8")
    lines = ["description", *(f'"{text}"' for text, _ in pool_rows())]
    rows.write_text("\n".join(lines), encoding="utf-8")
    return taxonomy, rows
