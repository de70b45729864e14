"""The user's hierarchy: read from a file, checked, and converted to layers of neurons."""

from hinet.taxonomy.arff import Arff
from hinet.taxonomy.changes import TaxonomyChange
from hinet.taxonomy.check import Report, check, draw
from hinet.taxonomy.draft import (
    PATH_MARK,
    PATH_SEP,
    Problem,
    TaxonomyFormat,
    as_id,
    has_paths,
    last_name,
    path_id,
    split_path,
    strip_padding,
)
from hinet.taxonomy.formats import FORMATS, read_draft
from hinet.taxonomy.layers import STOP, Layer, Layers
from hinet.taxonomy.nested_json import NestedJson
from hinet.taxonomy.obo import Obo
from hinet.taxonomy.skos import Skos
from hinet.taxonomy.taxonomy import VIRTUAL_ROOT, Taxonomy
from hinet.taxonomy.text_formats import Edges, IdPaths, LabelPaths, Table

__all__ = [
    "FORMATS",
    "PATH_MARK",
    "PATH_SEP",
    "STOP",
    "VIRTUAL_ROOT",
    "Arff",
    "Edges",
    "IdPaths",
    "LabelPaths",
    "Layer",
    "Layers",
    "NestedJson",
    "Obo",
    "Problem",
    "Report",
    "Skos",
    "Table",
    "Taxonomy",
    "TaxonomyChange",
    "TaxonomyFormat",
    "as_id",
    "check",
    "draw",
    "has_paths",
    "last_name",
    "path_id",
    "read_draft",
    "split_path",
    "strip_padding",
]
