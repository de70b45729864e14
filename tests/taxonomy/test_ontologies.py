"""SKOS and OBO: reading every syntax, errors in bad files, and round trips."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import FileError, HiNetError, Taxonomy, TaxonomyError
from hinet.taxonomy import FORMATS, Obo, Skos, read_draft
from hinet.taxonomy.draft import join_terms, split_terms
from hinet.taxonomy.skos import syntax_of
from tests.strategies import awkward_names, edge_lists

TURTLE = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix c: <http://example.org/c/> .
<http://example.org/things> a skos:ConceptScheme ; skos:hasTopConcept c:animal .
<http://example.org/places> a skos:ConceptScheme .
c:animal a skos:Concept ; skos:inScheme <http://example.org/things> ;
  skos:prefLabel "animal"@en , "Tier"@de ; skos:narrower c:cow .
c:cow a skos:Concept ; skos:inScheme <http://example.org/things> ; skos:prefLabel "cow"@en , "Kuh"@de ;
  skos:altLabel "cattle"@en , "ox|bull"@en , "Rind"@de ; skos:definition "It says\\n\\"moo\\"."@en .
c:calf a skos:Concept ; skos:broader c:cow ; skos:inScheme <http://example.org/things> ;
  skos:prefLabel "calf"@en-GB , "Kalb"@de .
c:farm a skos:Concept ; skos:topConceptOf <http://example.org/places> ; skos:prefLabel "farm" .
c:old a skos:Concept ; skos:broader c:cow ; <http://www.w3.org/2002/07/owl#deprecated> true .
"""
ANIMAL, COW, CALF, FARM = (f"http://example.org/c/{name}" for name in ("animal", "cow", "calf", "farm"))


def written(folder: Path, text: str, name: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def in_syntax(text: str, syntax: str) -> str:
    """Return Turtle in another syntax of RDF, by a parser and a serialiser."""
    import pyoxigraph as ox

    formats = {"rdf": ox.RdfFormat.RDF_XML, "nt": ox.RdfFormat.N_TRIPLES, "jsonld": ox.RdfFormat.JSON_LD}
    quads = ox.parse(input=text, format=ox.RdfFormat.TURTLE)
    return ox.serialize((quad.triple for quad in quads), format=formats[syntax]).decode()


def table(taxonomy: Taxonomy) -> set[frozenset[tuple[str, str]]]:
    """Return the rows of a taxonomy without their order and that of the columns."""
    columns = ("node", "parent", *taxonomy.attributes)
    return {frozenset(zip(columns, row, strict=True)) for row in taxonomy.rows()}


def test_a_thesaurus_has_titles_synonyms_and_definitions(tmp_path: Path) -> None:
    taxonomy = Taxonomy.from_file(written(tmp_path, TURTLE, "things.ttl"))
    assert taxonomy.ids == (ANIMAL, COW, CALF, FARM)
    assert taxonomy.parents(CALF) == (COW,)
    assert taxonomy.parents(COW) == (ANIMAL,)
    english = Taxonomy.from_file(tmp_path / "things.ttl", format=Skos("en"))
    assert english.titles == ("animal", "cow", "calf", "farm")
    assert english.attributes["synonyms"] == ("", r"cattle|ox\|bull", "", "")
    assert english.attributes["definition"] == ("", 'It says\n"moo".', "", "")


@pytest.mark.parametrize("syntax", ["rdf", "nt", "jsonld"])
def test_every_syntax_gives_the_same_taxonomy(tmp_path: Path, syntax: str) -> None:
    text = in_syntax(TURTLE, syntax)
    assert syntax_of(text) is not None
    for language in (None, "de"):
        expected = Taxonomy.from_file(written(tmp_path, TURTLE, "things.ttl"), format=Skos(language))
        found = Taxonomy.from_file(written(tmp_path, text, f"things.{syntax}"), format=Skos(language))
        assert table(found) == table(expected)
    with gzip.open(tmp_path / "things.gz", "wt") as file:
        file.write(text)
    assert {*Taxonomy.from_file(tmp_path / "things.gz").ids} == {ANIMAL, COW, CALF, FARM}


def test_rdf_xml_may_have_entities(tmp_path: Path) -> None:
    head = '<?xml version="1.0"?>\n<!-- a thesaurus -->\n<!DOCTYPE rdf:RDF [\n<!ENTITY s "http://www.w3.org/2004/02/skos/core#">\n]>\n'
    body = f"""<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:skos="&s;">
<skos:Concept rdf:about="{COW}"><skos:prefLabel xml:lang="en">cow</skos:prefLabel></skos:Concept></rdf:RDF>"""
    assert Taxonomy.from_file(written(tmp_path, head + body, "things.rdf")).titles == ("cow",)
    with pytest.raises(FileError, match="not valid RDF/XML"):
        Taxonomy.from_file(written(tmp_path, head + body.replace("</skos:Concept>", ""), "broken.rdf"))


def test_titles_are_in_the_given_language_or_that_of_most_labels(tmp_path: Path) -> None:
    path = written(tmp_path, TURTLE, "things.ttl")
    assert Taxonomy.from_file(path).titles == ("Tier", "Kuh", "Kalb", "farm")  # three labels, and two in en
    assert Taxonomy.from_file(path, format=Skos("de")).attributes["synonyms"][1] == "Rind"
    warnings = {problem.code for problem in read_draft(path).problems}
    assert warnings == {"several-schemes", "guessed-language"}
    with pytest.raises(FileError, match="in the language 'fr'; set `language` to one of 'de', 'en'"):
        Taxonomy.from_file(path, format=Skos("fr"))


@pytest.mark.parametrize("scheme", ["things", "http://example.org/things"])
def test_one_scheme_can_be_chosen(tmp_path: Path, scheme: str) -> None:
    path = written(tmp_path, TURTLE, "things.ttl")
    assert Taxonomy.from_file(path, format=Skos(scheme=scheme)).ids == (ANIMAL, COW, CALF)
    with pytest.raises(FileError, match="no concept scheme 'thing'; set `scheme` to one of"):
        Taxonomy.from_file(path, format=Skos(scheme="thing"))


def test_cycles_and_damaged_files_raise(tmp_path: Path) -> None:
    cycle = written(tmp_path, TURTLE + "c:animal skos:broader c:calf .", "cycle.ttl")
    with pytest.raises(TaxonomyError, match=f"cycle.ttl: cycle of 3: {ANIMAL} > {COW} > {CALF} > {ANIMAL}"):
        Taxonomy.from_file(cycle)
    broken = written(tmp_path, TURTLE.replace('"cow"@en', '"cow'), "broken.ttl")
    with pytest.raises(FileError, match="not valid Turtle") as error:
        Taxonomy.from_file(broken)
    assert error.value.line == 7
    with pytest.raises(FileError, match="no skos:Concept"):
        Taxonomy.from_file(written(tmp_path, "@prefix a: <http://a/> .\na:b a a:c .", "other.ttl"))
    named = read_draft(written(tmp_path, TURTLE + "c:cow skos:broader c:pet .", "named.ttl"))
    assert [p.nodes for p in named.problems if p.code == "undeclared-concept"] == [("http://example.org/c/pet",)]


OBO = r"""format-version: 1.2
! a comment
subsetdef: slim "Slim"

[Term]
id: A:1
name: animal \(any\) ! not part of the name

[Term]
id: A:2
name: cow
def: "It says \"moo\"." [book:1 "page \"2\""]
synonym: "cattle" EXACT []
synonym: "ox|bull" RELATED layperson [web:3]
is_a: A:1 {source="x"} ! animal

[Term]
id: A:3
name: calf {young}
is_a: A:2 ! cow
is_a: A:5
relationship: part_of A:4 ! herd

[Term]
id: A:4
name: herd

[Term]
id: A:5
is_obsolete: true

[Typedef]
id: part_of
name: part of
"""


def test_an_ontology_has_terms_synonyms_and_definitions(tmp_path: Path) -> None:
    path = written(tmp_path, OBO, "animals.obo")
    taxonomy = Taxonomy.from_file(path)
    assert taxonomy.ids == ("A:1", "A:2", "A:3", "A:4")
    assert taxonomy.titles == ("animal (any)", "cow", "calf {young}", "herd")
    assert taxonomy.attributes["definition"] == ("", 'It says "moo".', "", "")
    assert taxonomy.attributes["synonyms"] == ("", r"cattle|ox\|bull", "", "")
    assert taxonomy.parents("A:3") == ("A:2",)
    assert {*Taxonomy.from_file(path, format=Obo(part_of=True)).parents("A:3")} == {"A:2", "A:4"}
    (problem,) = read_draft(path).problems
    assert (problem.code, problem.line, problem.nodes) == ("left-out-parent", 21, ("A:3", "A:5"))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("name: cow", "cow", 11, "expected 'tag: value'"),
        ('def: "It says', "def: It says", 12, "in double quotes"),
        ("id: A:4\n", "", 25, "the id of the term first"),
        ("name: herd", "id: A:9", 26, "a second id"),
    ],
)
def test_bad_lines_raise_with_their_number(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    with pytest.raises(FileError, match=message) as error:
        Taxonomy.from_file(written(tmp_path, OBO.replace(old, new), "animals.obo"))
    assert error.value.line == line


def test_cycles_name_their_lines(tmp_path: Path) -> None:
    text = OBO.replace("name: animal", "is_a: A:3\nname: animal")
    with pytest.raises(TaxonomyError, match=r"animals.obo:7: cycle of 3: A:1 > A:2 > A:3 > A:1 \(lines 7, 16, 21\)"):
        Taxonomy.from_file(written(tmp_path, text, "animals.obo"))


def test_terms_equal_those_of_fastobo(tmp_path: Path) -> None:
    import fastobo

    text = OBO.replace("! a comment\n", "").replace(" {young}", "")  # both of which it refuses
    taxonomy = Taxonomy.from_file(written(tmp_path, text, "animals.obo"))
    frames = [f for f in fastobo.load(str(tmp_path / "animals.obo")) if isinstance(f, fastobo.term.TermFrame)]
    for frame in frames:
        clauses = list(frame)
        if any(isinstance(clause, fastobo.term.IsObsoleteClause) for clause in clauses):
            assert str(frame.id) not in taxonomy
            continue
        row = taxonomy.position(str(frame.id))
        names = [clause.name.strip() for clause in clauses if isinstance(clause, fastobo.term.NameClause)]
        assert [taxonomy.titles[row]] == names
        synonyms = [clause.synonym.desc for clause in clauses if isinstance(clause, fastobo.term.SynonymClause)]
        assert split_terms(taxonomy.attributes["synonyms"][row]) == synonyms
        definitions = [str(clause.definition) for clause in clauses if isinstance(clause, fastobo.term.DefClause)]
        assert [text for text in [taxonomy.attributes["definition"][row]] if text] == definitions


@given(st.lists(awkward_names))
def test_terms_in_a_cell_round_trip(terms: list[str]) -> None:
    assert split_terms(join_terms(terms)) == terms


@st.composite
def described(draw: st.DrawFn) -> Taxonomy:
    """A small tree or DAG with titles, synonyms, definitions and another column, some of them empty."""
    edges = draw(edge_lists(dag=draw(st.booleans())))
    nodes = list(dict.fromkeys(child for _, child in edges))
    text = st.just("") | awkward_names
    columns = {
        "title": {node: draw(text) for node in nodes},
        "synonyms": {node: join_terms(draw(st.lists(awkward_names, max_size=3, unique=True))) for node in nodes},
        "definition": {node: draw(text) for node in nodes},
        "a column": {node: draw(text) for node in nodes},
    }
    return Taxonomy.from_edges(edges, attributes={n: c for n, c in columns.items() if any(c.values())})


@given(described(), st.sampled_from([".ttl", ".obo", ".ttl.gz", ".obo.xz"]))
def test_a_written_file_round_trips(tmp_path_factory: pytest.TempPathFactory, taxonomy: Taxonomy, suffix: str) -> None:
    path = tmp_path_factory.mktemp("written") / f"taxonomy{suffix}"
    if "obo" in suffix and any("\r" in cell for row in taxonomy.rows() for cell in row):
        with pytest.raises(TaxonomyError, match="carriage return"):
            taxonomy.write(path)
        assert not path.exists()
        return
    taxonomy.write(path)
    found = Taxonomy.from_file(path)
    assert found.ids == taxonomy.ids
    assert {row[:2] for row in found.rows()} == {row[:2] for row in taxonomy.rows()}
    assert found.root == taxonomy.root
    assert found.attributes == taxonomy.attributes


def test_ids_that_are_iris_stay_iris(tmp_path: Path) -> None:
    taxonomy = Taxonomy.from_file(written(tmp_path, TURTLE, "things.ttl"), format=Skos("en"))
    taxonomy.write(tmp_path / "again.ttl")
    assert f"<{COW}> a skos:Concept" in (tmp_path / "again.ttl").read_text()
    assert Taxonomy.from_file(tmp_path / "again.ttl") == taxonomy


def test_blank_labels_and_other_languages_are_not_titles(tmp_path: Path) -> None:
    text = TURTLE.replace('"animal"@en', '" "@en').replace('"cow"@en', '"koe"@nl')
    taxonomy = Taxonomy.from_file(written(tmp_path, text, "things.ttl"), format=Skos("en"))
    assert taxonomy.titles == ("", "", "calf", "farm")


def test_a_thesaurus_needs_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, TURTLE, "things.ttl")
    monkeypatch.setitem(sys.modules, "pyoxigraph", None)
    with pytest.raises(
        HiNetError, match=r"a SKOS file needs pyoxigraph; install it with: pip install 'hinet\[ontology\]'"
    ):
        Taxonomy.from_file(path)


def test_formats_are_distinguished() -> None:
    assert syntax_of(TURTLE) == "Turtle"
    assert Obo.recognises(OBO)
    assert {"skos", "obo", "arff"} <= FORMATS.keys()
    for other in ('{"Food": {"Bread": {}}}', '[{"id": "a", "children": []}]', "a > b\n", "1 2\n", "node\tparent\n"):
        assert syntax_of(other) is None
        assert not Obo.recognises(other)


def test_control_characters_stay_in_ids(tmp_path: Path) -> None:
    taxonomy = Taxonomy.from_edges([("top", "low\x1f"), ("top", "low\\")])
    taxonomy.write(tmp_path / "written.obo")
    assert Taxonomy.from_file(tmp_path / "written.obo").ids == taxonomy.ids


RDF = '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:skos="http://www.w3.org/2004/02/skos/core#">'


def rdf_xml(doctype: str, label: str) -> str:
    """Return a thesaurus of one concept in RDF/XML."""
    return (
        f'<?xml version="1.0"?>\n{doctype}\n{RDF}\n<skos:Concept rdf:about="{COW}"><skos:prefLabel xml:lang="en">'
        f"{label}</skos:prefLabel></skos:Concept></rdf:RDF>"
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    ("entities", "line"),
    [
        ('<!ENTITY a "ha">\n<!ENTITY b "&a;&a;">', 4),
        ('<!-- " -->\n<!ENTITY  a  "ha">\n<!ENTITY b "&a;&a;">', 5),
        ('<!ENTITY % p "ha">', 3),
        ('<!ENTITY f SYSTEM "file:///etc/passwd">', 3),
        (f'<!ENTITY long "{"x" * 1_001}">', 3),
        ('<!ENTITY m "<b/>">', 3),
        ('<!ENTITY a "x&#38;a;">', 3),
    ],
)
def test_entities_other_than_short_text_raise_with_the_line(
    tmp_path: Path, encoding: str, entities: str, line: int
) -> None:
    path = tmp_path / "bomb.rdf"
    path.write_text(rdf_xml(f"<!DOCTYPE rdf:RDF [\n{entities}\n]>", "cow"), encoding)
    with pytest.raises(
        FileError, match="not plain text of at most 1,000 characters; write it out, or convert"
    ) as error:
        read_draft(path, encoding="utf-16" if encoding == "utf-16" else "utf-8")
    assert (error.value.path, error.value.line) == (str(path), line)


def test_unclosed_comments_are_read_in_linear_time(tmp_path: Path) -> None:
    path = written(tmp_path, '<?xml version="1.0"?>\n<!DOCTYPE rdf:RDF [' + "<!--" * 500_000, "comments.rdf")
    code = f"from hinet.taxonomy.skos import _XML; assert not _XML.match(open({str(path)!r}).read())"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_entities_that_expand_to_long_text_raise(tmp_path: Path) -> None:
    doctype = f'<!DOCTYPE rdf:RDF [<!ENTITY a "{"x" * 900}">]>'
    with pytest.raises(FileError, match="the entities of the file stand for 4,500,000 characters"):
        read_draft(written(tmp_path, rdf_xml(doctype, "&a;" * 5_000), "quadratic.rdf"))


def test_entities_are_expanded_as_in_xml(tmp_path: Path) -> None:
    doctype = """<!DOCTYPE rdf:RDF [
<!ENTITY q 'a "b" ]>'>  <!-- it's ] -->
<!ENTITY q "the second does not count">
]>"""
    definition = "</skos:prefLabel><!-- &q; --><skos:definition><![CDATA[&q; <!DOCTYPE]]></skos:definition>"
    label = f"&q; &amp; &#65;{definition}<skos:prefLabel>"
    attributes = read_draft(written(tmp_path, rdf_xml(doctype, label), "things.rdf")).attributes
    assert list(attributes["title"]) == ['a "b" ]> & A']
    assert list(attributes["definition"]) == ["&q; <!DOCTYPE"]
    with pytest.raises(FileError, match="not valid RDF/XML") as error:
        read_draft(written(tmp_path, rdf_xml(doctype, "&z;"), "unknown.rdf"))
    assert error.value.line == 7


@pytest.mark.parametrize(
    ("start", "end", "nested"),
    [
        (f"{RDF}\n", "</rdf:RDF>", "<skos:Concept>|<skos:broader>|</skos:broader>|</skos:Concept>"),
        ('{"@id": "a:b", "a:p":\n', "{}}", '{"@id": "a:b", |"a:p":|{}|}'),
    ],
)
def test_deep_nesting_raises_in_rdf_xml_and_json_ld(tmp_path: Path, start: str, end: str, nested: str) -> None:
    outer, inner, inner_end, outer_end = nested.split("|")
    text = start + (outer + inner) * 50_000 + (inner_end + outer_end) * 50_000 + end
    with pytest.raises(FileError, match="more than 500 elements are nested") as error:
        read_draft(written(tmp_path, text, "deep.txt"), format="skos")
    assert error.value.line == 2


def test_many_comments_are_skipped_in_linear_time() -> None:
    assert syntax_of("<!-- a -->" * 10_000 + "node,parent") is None
    assert syntax_of("<!-- a -->" * 10_000 + "<?style x?>" + RDF) == "RDF/XML"
