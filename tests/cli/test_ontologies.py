"""Thesauri and ontologies in the commands that read a hierarchy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hinet import Taxonomy, load
from tests.cli.conftest import CATEGORIES, products
from tests.cli.test_columns import main_error, main_ok

SHOP = "http://example.org/shop/"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a thesaurus of categories, titled in two languages, an ontology, and rows of both."""
    folder = tmp_path_factory.mktemp("ontologies")
    lines = ["@prefix skos: <http://www.w3.org/2004/02/skos/core#> .", f"@prefix s: <{SHOP}> ."]
    lines += [f's:{top} a skos:Concept ; skos:prefLabel "{top}"@en .' for top in ("electronics", "food")]
    for label, (parent, words) in CATEGORIES.items():
        terms = f'skos:prefLabel "the {label}"@en, "das {label}"@de ; skos:altLabel "{words}"@en'
        lines.append(f"s:{label} a skos:Concept ; skos:broader s:{parent} ; {terms} .")
    (folder / "shop.ttl").write_text("\n".join(lines))
    Taxonomy.from_edges([(parent, label) for label, (parent, _) in CATEGORIES.items()]).write(folder / "shop.obo")
    rows = products(120)
    (folder / "iris.csv").write_text("text,label\n" + "".join(f"{text},{SHOP}{label}\n" for _, text, label in rows))
    (folder / "ids.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for _, text, label in rows))
    return folder


@pytest.mark.parametrize(("hierarchy", "rows", "prefix"), [("shop.ttl", "iris.csv", SHOP), ("shop.obo", "ids.csv", "")])
def test_models_are_trained_below_them(shop: Path, tmp_path: Path, hierarchy: str, rows: str, prefix: str) -> None:
    model = tmp_path / "model"
    main_ok("train", shop / rows, "--taxonomy", shop / hierarchy, "--out", model, "--threads", 1, "-q")
    classifier = load(model)
    assert classifier.predict(["dark bread"]).tolist() == [f"{prefix}rye"]
    assert classifier.taxonomy_.parents(f"{prefix}rye") == (f"{prefix}food",)


def test_they_are_checked_and_converted(shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    thesaurus = shop / "shop.ttl"
    main_ok("taxonomy", "check", thesaurus, "--rows", shop / "iris.csv", "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["summary"]["rows"]["labels"] == 4
    assert "set --language to be sure" in {w["code"]: w for w in report["warnings"]}["guessed-language"]["message"]
    for name in ("shop.csv", "again.ttl", "shop.obo"):
        main_ok("taxonomy", "convert", thesaurus, tmp_path / name, "--language", "de", "-q")
        taxonomy = Taxonomy.from_file(tmp_path / name)
        assert taxonomy.titles[taxonomy.position(f"{SHOP}rye")] == "das rye"
        main_ok("taxonomy", "show", tmp_path / name)
        assert "das rye" in capsys.readouterr().out
    assert "--language to one of 'en', 'de'" in main_error(capsys, "taxonomy", "show", thesaurus, "--language", "fr")
    assert "require --format skos" in main_error(
        capsys, "taxonomy", "show", thesaurus, "--format", "obo", "--scheme", "x"
    )
    assert "requires --format obo" in main_error(capsys, "taxonomy", "show", thesaurus, "--sep", ">", "--part-of")
