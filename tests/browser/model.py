"""A small model with what is hard to show: a deep tree, a wide node, long, right-to-left and hostile titles."""

from __future__ import annotations

from pathlib import Path

from hinet import HiNetClassifier, Taxonomy

LONG_TITLE = (
    "Kitchen knives, cleavers and other hand-held cutting implements for domestic use, whether or not sold in sets, "
    "with handles of wood, horn, plastic or metal, excluding "
    "Donaudampfschifffahrtselektrizitaetenhauptbetriebswerkbauunterbeamtengesellschaft"
)
HOSTILE_TITLE = "<img src=x onerror=\"document.title='broken'\"><b>bold</b> & co"
DEPTH = 16
WIDE = 120

TITLES = {
    "food": "Food",
    "bread": "Bread",
    "rye": "Rye bread",
    "white": "White bread",
    "milk": "Milk",
    "cheese": "Cheese",
    "tools": "Tools",
    "knives": LONG_TITLE,
    "hammers": "Hammers",
    "html": HOSTILE_TITLE,
    "kutub": "كتب",
    "riwayat": "روايات وقصص قصيرة",
    "shir": "دواوين الشعر العربي",
    "screws": "Screws",
}
PARENTS = {
    "food": "", "bread": "food", "rye": "bread", "white": "bread", "milk": "food", "cheese": "food", "tools": "",
    "knives": "tools", "hammers": "tools", "html": "tools", "kutub": "", "riwayat": "kutub", "shir": "kutub", 
    "screws": "",
}  # fmt: skip
SYNONYMS = {"rye": "pumpernickel", "hammers": "mallets; sledges"}

TEXTS = {
    "rye": ["dark rye bread", "rye loaf", "sliced rye bread with seeds", "sour rye bread"],
    "white": ["white bread", "soft white toast bread", "white sandwich loaf", "white rolls"],
    "milk": ["whole milk", "skimmed milk", "fresh milk in a bottle", "oat milk"],
    "cheese": ["goat cheese", "hard cheese from the mountains", "blue cheese", "cream cheese"],
    "knives": ["kitchen knife of steel", "bread knife with a wooden handle", "set of knives", "paring knife"],
    "hammers": ["claw hammer", "heavy hammer with a wooden handle", "rubber hammer", "small hammer"],
    "html": ["angle bracket of steel", "shelf bracket", "wall bracket", "corner bracket"],
    "riwayat": ["رواية تاريخية طويلة", "قصص قصيرة للأطفال", "رواية بوليسية", "مجموعة قصص"],
    "shir": ["ديوان شعر قديم", "قصائد مختارة", "شعر عربي حديث", "ديوان المتنبي"],
}  # fmt: skip


def train(folder: Path) -> Path:
    """Train the model and save it to a folder."""
    titles, parents, texts = {**TITLES}, {**PARENTS}, {**TEXTS}
    above = ""
    for level in range(1, DEPTH + 1):  # a chain of crates, each with a box next to the next crate
        for kind in ("crate", "box"):
            node = f"{kind}{level}"
            titles[node], parents[node] = f"{kind.capitalize()} of size {level} in the warehouse", above
        texts[f"box{level}"] = [f"cardboard parcel number{level}", f"parcel number{level} with tape"]
        above = f"crate{level}"
    texts[above] = ["nested crate", "innermost nested crate", "nested crate within crates", "crate nested deep"]
    for number in range(WIDE):
        node = f"screw{number}"
        titles[node], parents[node] = f"Screw M{number}", "screws"
        texts[node] = [f"screw m{number}", f"steel screw of gauge m{number}"]
    table = folder.parent / "taxonomy.csv"
    lines = [
        f'{node},{parents[node]},"{titles[node].replace(chr(34), chr(34) * 2)}",{SYNONYMS.get(node, "")}'
        for node in titles
    ]
    table.write_text("\n".join(["node,parent,title,synonyms", *lines]), encoding="utf-8")
    rows = [(text, node) for node, some in texts.items() for text in some]
    classifier = HiNetClassifier(Taxonomy.from_file(table), random_state=0, n_jobs=1)
    classifier.fit([text for text, _ in rows], [node for _, node in rows])
    classifier.save(folder)
    return folder


def write_goods(folder: Path) -> tuple[Path, Path]:
    """Write rows of a title and a price, and their taxonomy: a DAG with a root of its own."""
    rows = ["title,price,label"]
    for number in range(12):
        rows += [f"red wine bottle {number},{price + number},{node}" for price, node in ((20, "cheap"), (200, "dear"))]
        rows.append(f"green tea {number},{5 + number},tea")
    edges = ["all,,All goods", "drinks,all,Drinks", "gifts,all,Gifts", "wine,drinks,Wine", "cheap,wine,Cheap wine"]
    edges += ["dear,wine,Dear wine", "dear,gifts,Dear wine", "tea,drinks,Tea"]
    table, taxonomy = folder / "goods.csv", folder / "goods_taxonomy.csv"
    table.write_text("\n".join(rows), encoding="utf-8")
    taxonomy.write_text("\n".join(["node,parent,title", *edges]), encoding="utf-8")
    return table, taxonomy


def train_tags(folder: Path) -> Path:
    """Train a model of several labels per text and save it to a folder."""
    words = {"bread": ["rye bread", "white bread"], "milk": ["whole milk", "oat milk"], "cars": ["toy car", "race car"]}
    alone = [(text, {label}) for label, texts in words.items() for text in texts]
    pairs = [(f"{one} and {other}", first | second) for one, first in alone for other, second in alone if one < other]
    rows = (alone + pairs) * 4
    edges = [("food", "bread"), ("food", "milk"), ("toys", "cars"), ("toys", "trains")]
    classifier = HiNetClassifier(Taxonomy.from_edges(edges), random_state=0, n_jobs=1)
    classifier.fit([text for text, _ in rows], [labels for _, labels in rows])
    classifier.save(folder)
    return folder
