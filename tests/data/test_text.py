from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from hinet import load_icd10cm
from hinet.data.text import TextFeatures, TextSettings, known_shares, text_input, unknown_words
from hinet.data.text.ngram_kernels import BLANK, LETTER, MARK, PICTURE, SINGLE
from hinet.data.text.text_input import align, character_classes, join_words, replacements, word_pattern
from hinet.errors import HiNetError

WORDS = TextSettings(char_ngrams=None)
BOTH = TextSettings(char_ngrams=(3, 5))

# Letters that grow, shrink or change class when normalised; blanks that str.split knows; words that come back; marks,
# points, joiners and parts of emoji; scripts without blanks.
alphabet = st.sampled_from(
    [
        *"aabbc  _1-.,AÉéßﬁ½①İΣς漢字ﾊﾞ가ไทยทีक्षि٣مـَ🙂👍🏽",
        *"\u0301\u1100\u1161\u00a0\u2003\u0085\x1c\U0001d538\u200b\u200d\u00ad",
    ]
) | st.characters(exclude_categories=["Cs"])
some_texts = st.lists(st.text(alphabet, max_size=30), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def icd() -> list[str]:
    return list(load_icd10cm().train.texts[:3000])


def seen_by_both(texts: Sequence[str]) -> list[str]:
    table = replacements()
    changed = {code: int(table[code]) or None for code in np.flatnonzero(table != np.arange(len(table))).tolist()}
    normal: list[str] = pc.utf8_lower(pc.utf8_normalize(pa.array(texts, pa.string()), form="NFKC")).to_pylist()
    return [text.translate(changed) for text in normal]


def words_of(text: str) -> list[str]:
    return word_pattern(text).findall(text)


class WordOracle(TfidfVectorizer):
    def get_feature_names_out(self, input_features: Any = None) -> Any:
        return [join_words(name.split(" ")) for name in super().get_feature_names_out()]


def word_oracle(sizes: tuple[int, int] = (1, 2), **options: Any) -> TfidfVectorizer:
    return WordOracle(
        ngram_range=sizes,
        tokenizer=words_of,
        token_pattern=None,
        **{"sublinear_tf": True, "lowercase": False} | options,
    )


def char_oracle(sizes: tuple[int, int] = (3, 5), **options: Any) -> TfidfVectorizer:
    return TfidfVectorizer(ngram_range=sizes, analyzer="char_wb", sublinear_tf=True, lowercase=False, **options)


def aligned(features: TextFeatures, rows: Any, names: Sequence[str]) -> Any:
    """Return rows with their columns in the order of these names, which must be all."""
    column = {name: number for number, name in enumerate(features.names(range(features.count)))}
    assert sorted(column) == sorted(names)
    return rows[:, [column[name] for name in names]]


def assert_same(ours: Any, theirs: Any) -> None:
    assert ours.shape == theirs.shape
    assert ours.nnz == theirs.nnz
    assert abs(ours - theirs).max() < 1e-6 if ours.nnz else True


def assert_identical(rows: Any, others: Any) -> None:
    for name in ("data", "indices", "indptr"):
        assert getattr(rows, name).tobytes() == getattr(others, name).tobytes()
        assert getattr(rows, name).dtype == getattr(others, name).dtype
    assert rows.shape == others.shape


def state(features: TextFeatures) -> dict[str, Any]:
    arrays = {name: (array.dtype.str, array.tobytes()) for name, array in features.to_arrays().items()}
    return {**arrays, **features.describe()}


def fitted(texts: Any, chosen: TextSettings, **options: Any) -> tuple[TextFeatures, Any] | None:
    try:
        return TextFeatures.fit_transform(texts, chosen, **options)
    except HiNetError:
        return None


def oracle_rows(oracle: TfidfVectorizer, texts: Sequence[str]) -> Any:
    try:
        return oracle.fit_transform(texts)
    except ValueError:  # no feature is left
        return None


@pytest.mark.parametrize("min_df", [1, 2, 5])
def test_words_of_real_texts_equal_scikit_learn(icd: list[str], min_df: int) -> None:
    features, rows = TextFeatures.fit_transform(icd, TextSettings(char_ngrams=None, min_df=min_df))
    oracle = word_oracle(min_df=min_df)
    theirs = oracle.fit_transform(seen_by_both(icd))
    assert_same(aligned(features, rows, oracle.get_feature_names_out()), theirs)


def test_characters_of_real_texts_equal_scikit_learn(icd: list[str]) -> None:
    features, rows = TextFeatures.fit_transform(icd, TextSettings(word_ngrams=None, char_ngrams=(3, 5), min_df=2))
    oracle = char_oracle(min_df=2)
    theirs = oracle.fit_transform(seen_by_both(icd))
    assert_same(aligned(features, rows, [f"[{name}]" for name in oracle.get_feature_names_out()]), theirs)


def test_both_kinds_are_weighed_blocks_of_a_row_of_length_one(icd: list[str]) -> None:
    train, other = icd[:1000], [*icd[1000:1500], "", "?", "zyzzyva"]
    features = TextFeatures.fit(train, TextSettings(char_ngrams=(3, 5), char_weight=0.5, min_df=2))
    words, chars = word_oracle(min_df=2).fit(seen_by_both(train)), char_oracle(min_df=2).fit(seen_by_both(train))
    theirs = [words.transform(seen_by_both(other)), 0.5 * chars.transform(seen_by_both(other))]
    names = [*words.get_feature_names_out(), *(f"[{name}]" for name in chars.get_feature_names_out())]
    assert_same(aligned(features, features.transform(other), names), normalize(sp.hstack(theirs)))


@given(some_texts, st.integers(1, 3), st.integers(0, 2), st.integers(1, 2))
def test_words_of_any_texts_equal_scikit_learn(texts: list[str], short: int, more: int, min_df: int) -> None:
    sizes = short, short + more
    oracle = word_oracle(sizes, min_df=min_df)
    theirs = oracle_rows(oracle, seen_by_both(texts))
    ours = fitted(texts, TextSettings(word_ngrams=sizes, char_ngrams=None, min_df=min_df))
    assert (ours is None) == (theirs is None)
    if ours is not None:
        assert_same(aligned(*ours, oracle.get_feature_names_out()), theirs)


@given(some_texts, st.integers(1, 6), st.integers(0, 3), st.integers(1, 2))
def test_characters_of_any_texts_equal_scikit_learn(texts: list[str], short: int, more: int, min_df: int) -> None:
    sizes = short, short + more
    oracle = char_oracle(sizes, min_df=min_df)
    theirs = oracle_rows(oracle, seen_by_both(texts))
    ours = fitted(texts, TextSettings(word_ngrams=None, char_ngrams=sizes, min_df=min_df))
    assert (ours is None) == (theirs is None)
    if ours is not None:
        assert_same(aligned(*ours, [f"[{name}]" for name in oracle.get_feature_names_out()]), theirs)


def test_the_class_of_every_character() -> None:
    classes = character_classes(ascii_only=False)
    assert character_classes(ascii_only=True).tolist() == classes[:128].tolist()
    for code, kind in enumerate(classes.tolist()):
        char = chr(code)
        category = unicodedata.category(char)
        if code in range(0xE0000, 0xE1000):  # tags, which are ignored
            continue
        assert (kind == BLANK) == char.isspace()
        assert (kind == MARK) == (category[0] == "M"), hex(code)
        if kind in (LETTER, SINGLE):
            assert char.isalnum() or char == "_"
        elif kind != PICTURE:
            assert not char.isalnum()
    for char in "漢あアไកမ々한":
        assert classes[ord(char)] == SINGLE
    for char in "aß1_éдअعא٣๓":
        assert classes[ord(char)] == LETTER
    for char in "🙂☀👍🇫":
        assert classes[ord(char)] == PICTURE


@given(st.text(alphabet))
def test_words_are_runs_of_letters_or_single_characters_with_their_marks(text: str) -> None:
    classes, words, inside = character_classes(ascii_only=False), list[str](), 0
    for char in text:
        kind = int(classes[ord(char)])
        if kind < LETTER:
            inside = 0
        elif (kind == MARK and inside) or kind == LETTER == inside:
            words[-1] += char
        else:
            words.append(char)
            inside = LETTER if kind == MARK else kind
    assert word_pattern(text).findall(text) == words


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("東京タワー", "東 京 タ ワ ー 東京 京タ タワ ワー"),
        ("NEC社", "nec 社 nec_社"),
        ("ภาษา", "ภ า ษ ภา าษ ษา"),
        ("ที่นี่", "ที่ นี่ ที่นี่"),
        ("हिन्दी भाषा", "हिन्दी भाषा हिन्दी_भाषा"),
        ("مُحَمَّد", "محمد"),
        ("كـــتاب ٣", "كتاب 3 كتاب_3"),
        ("שָׁלוֹם", "שלום"),
        ("한국어 \uff21\uff22\uff23\uff11", "한 국 어 한국 국어 abc1 어_abc1"),
        ("ﾊﾞ", "バ"),
        ("ΣΟΦΟΣ", "σοφοσ"),
        ("Σοφός", "σοφοσ"),
        ("İstanbul", "istanbul"),
        ("soft\u00adware", "software"),
        ("👍🏽", "👍"),
        ("👩\u200d💻 ❤\ufe0f", "👩 💻 ❤ 👩💻 💻❤"),
        ("Łódź", "łódź"),
    ],
)
def test_words_of_every_script(text: str, names: str) -> None:
    features = TextFeatures.fit([text], WORDS)
    assert set(features.names(range(features.count))) == {name.replace("_", " ") for name in names.split()}
    assert known_shares(features, [text]).tolist() == [1.0]
    assert unknown_words(features, text) == ()


@pytest.mark.parametrize(
    ("texts", "others"),
    [
        (["全麦面包", "脱脂牛奶", "电动玩具火车"], ["白面包", "鲜牛奶", "木制火车"]),
        (["ライ麦パン", "低脂肪牛乳", "電車のおもちゃ"], ["白いパン", "新鮮な牛乳", "木製の電車"]),
        (["호밀빵", "저지방우유", "장난감기차"], ["흰빵", "신선한우유", "나무기차"]),
        (["ขนมปังโฮลวีต", "นมพร่องมันเนย", "รถไฟของเล่น"], ["ขนมปังขาว", "นมสด", "รถไฟไม้"]),
        (["गेहूँ की रोटी", "ताज़ा दूध", "खिलौना रेलगाड़ी"], ["मक्के की रोटी", "गाय का दूध", "लकड़ी की रेलगाड़ी"]),
        (["خُبْزُ القمح", "حليب طازج", "قطار لعبة"], ["خبز أبيض", "حـــليب بارد", "قطار خشبي"]),
        (["Ψωμί ολικής", "Φρέσκο γάλα", "Τρενάκι"], ["ΨΩΜΙ ΛΕΥΚΟ", "ΓΑΛΑ", "ΤΡΕΝΑΚΙ ΞΥΛΙΝΟ"]),  # noqa: RUF001
        (["🍞🧈", "🥛 🐄", "🚂"], ["🍞", "🐄", "🚂💨"]),
    ],
    ids=["Chinese", "Japanese", "Korean", "Thai", "Hindi", "Arabic", "Greek", "emoji"],
)
def test_related_texts_share_words_in_every_script(texts: list[str], others: list[str]) -> None:
    features, rows = TextFeatures.fit_transform(texts, WORDS)
    likeness = (features.transform(others) @ rows.T).toarray()
    assert likeness.argmax(axis=1).tolist() == [0, 1, 2]
    assert (likeness.diagonal() > 0).all()


@given(st.text(alphabet))
def test_the_form_of_a_text_does_not_matter(text: str) -> None:
    def grams(text: str) -> Any:
        result = fitted([text], BOTH)
        return None if result is None else sorted(result[0].names(range(result[0].count)))

    expected = grams(text)
    for form in ("NFC", "NFD", "NFKC"):
        assert grams(unicodedata.normalize(form, text)) == expected
    wide = "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in text)
    assert grams(wide) == expected


@given(st.text(alphabet), st.text(alphabet))
def test_the_words_of_two_texts_are_those_of_each(text: str, other: str) -> None:
    first, second, both = (words_of(each) for each in seen_by_both([text, other, f"{text} {other}"]))
    assert both == first + second
    assert all(both)


@given(some_texts)
def test_a_text_with_letters_has_features_of_its_own(texts: list[str]) -> None:
    for chosen in (WORDS, BOTH):
        for text in texts:
            result = fitted([text], chosen)
            assert result is not None or not any(char.isalnum() for char in text)
        result = fitted(texts, chosen)
        if result is not None:
            features, rows = result
            for number, text in enumerate(texts):
                assert_identical(features.transform([text]), rows[[number]])


@given(st.text(alphabet))
def test_normalised_characters_are_found_in_the_typed_text(text: str) -> None:
    normal, spans = align(text)
    assert normal == seen_by_both([text])[0]
    assert len(normal) == len(spans)
    assert spans == sorted(spans)
    for char, (start, end) in zip(normal, spans, strict=True):
        assert char in seen_by_both([text[start:end]])[0]


@given(some_texts, st.sampled_from([WORDS, BOTH, TextSettings(), TextSettings(hash_bits=5, char_ngrams=(2, 3))]))
def test_rows_are_canonical_and_of_length_one_or_empty(texts: list[str], chosen: TextSettings) -> None:
    result = fitted(texts, chosen)
    if result is None:
        return
    features, rows = result
    assert rows.dtype == np.float32
    assert rows.indices.dtype == np.int32
    assert rows.shape == (len(texts), features.count)
    for start, stop in zip(rows.indptr, rows.indptr[1:], strict=False):
        assert (np.diff(rows.indices[start:stop]) > 0).all()
    lengths = np.sqrt(rows.multiply(rows).sum(axis=1))
    assert np.allclose(lengths[np.diff(rows.indptr) > 0], 1, atol=1e-5)
    assert (rows.data > 0).all()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut even a few texts into several blocks."""
    monkeypatch.setattr(text_input, "MIN_BLOCK_BYTES", 200)
    monkeypatch.setattr(text_input, "MAX_BLOCK_BYTES", 2_000)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("chosen", [TextSettings(), WORDS, TextSettings(hash_bits=10), TextSettings(max_features=300)])
def test_threads_and_chunks_do_not_change_features(icd: list[str], chosen: TextSettings) -> None:
    texts = [*icd[:400], "", "Ménière's ½ ﬁx", *icd[2000:2200]]
    features, rows = TextFeatures.fit_transform(texts, chosen, threads=1)
    whole = state(features)
    for threads in (2, 5):
        again, same_rows = TextFeatures.fit_transform(texts, chosen, threads=threads)
        assert state(again) == whole
        assert_identical(same_rows, rows)
        assert_identical(again.transform(texts, threads=threads), rows)
    for size in (1, 37, 401):
        chunks = [texts[start : start + size] for start in range(0, len(texts), size)]
        streamed = TextFeatures.fit_chunks(iter([[], *chunks]), chosen, threads=2)
        assert state(streamed) == whole
        assert_identical(sp.vstack([streamed.transform(chunk) for chunk in chunks], format="csr"), rows)
    assert state(TextFeatures.fit(texts, chosen)) == whole


def test_the_order_of_texts_does_not_change_features(icd: list[str]) -> None:
    features, rows = TextFeatures.fit_transform(icd[:500], BOTH)
    turned, turned_rows = TextFeatures.fit_transform(icd[:500][::-1], BOTH)
    assert state(turned) == state(features)
    assert_identical(turned_rows[::-1], rows)


@pytest.mark.parametrize("chosen", [BOTH, WORDS, TextSettings(hash_bits=8), TextSettings(keep_names=False)])
def test_saved_features_round_trip(icd: list[str], chosen: TextSettings) -> None:
    features, rows = TextFeatures.fit_transform(icd[:300], chosen)
    described = json.loads(json.dumps(features.describe()))
    arrays = {name: np.frombuffer(array.tobytes(), array.dtype) for name, array in features.to_arrays().items()}
    restored = TextFeatures.from_arrays(arrays, described)
    assert state(restored) == state(features)
    assert restored.settings == features.settings
    assert_identical(restored.transform(icd[:300]), rows)
    if features.settings.has_names:
        assert restored.names(range(restored.count)) == features.names(range(features.count))


def test_inconsistent_saved_features_raise() -> None:
    features = TextFeatures.fit(["a b", "a b"], WORDS)
    arrays, described = features.to_arrays(), features.describe()
    with pytest.raises(HiNetError, match=r"no 'words\.idf'"):
        TextFeatures.from_arrays({name: array for name, array in arrays.items() if name != "words.idf"}, described)
    names = arrays["words.names"].copy()
    names[0] = 0x80
    for name, wrong, message in (
        ("words.idf", arrays["words.idf"][1:], "has the shape"),
        ("words.idf", arrays["words.idf"][:, None], "has the shape"),
        ("words.idf", arrays["words.idf"] * np.nan, "holds nan at index 0"),
        ("words.idf", arrays["words.idf"] * 0, "holds 0.0 at index 0"),
        ("words.hashes", arrays["words.hashes"][::-1], "expected ascending values"),
        ("words.hashes", arrays["words.hashes"].astype(np.float64), "is of float64, expected unsigned integers"),
        ("words.name_offsets", arrays["words.name_offsets"][1:], "has the shape"),
        ("words.name_offsets", -arrays["words.name_offsets"], "expected offsets from 0 to"),
        ("words.names", names, "not UTF-8"),
    ):
        with pytest.raises(HiNetError, match=rf"the array '{name}' .*{message}"):
            TextFeatures.from_arrays({**arrays, name: wrong}, described)
    for settings, message in (
        ({"sublinear": "x"}, "sublinear: expected True or False, got 'x'"),
        ({"char_ngrams": "auto"}, "char_ngrams is 'auto'"),
    ):
        with pytest.raises(HiNetError, match=message):
            TextFeatures.from_arrays(arrays, {**described, "settings": {**described["settings"], **settings}})
    with pytest.raises(HiNetError, match="unknown text setting 'min_fd'; did you mean 'min_df'"):
        TextFeatures.from_arrays(arrays, {**described, "settings": {"min_fd": 3}})


def test_many_hash_bits_are_a_vocabulary_with_other_numbers(icd: list[str]) -> None:
    texts = icd[:40]
    features, rows = TextFeatures.fit_transform(texts, BOTH)
    hashed, hashed_rows = TextFeatures.fit_transform(texts, TextSettings(char_ngrams=(3, 5), hash_bits=24))
    assert hashed.count == 2**25
    used = np.unique(hashed_rows.indices)
    assert len(used) == features.count
    # Both number by hash, so the used columns come in the same order.
    assert_identical(
        sp.csr_array(
            (hashed_rows.data, np.searchsorted(used, hashed_rows.indices).astype(np.int32), hashed_rows.indptr),
            rows.shape,
        ),
        rows,
    )


@given(some_texts, st.integers(1, 3))
def test_hashed_features_are_sums_of_vocabulary_columns(texts: list[str], bits: int) -> None:
    plain = TextSettings(char_ngrams=None, min_df=1, sublinear=False)
    result = fitted(texts, plain)
    if result is None:
        return
    features, _ = result
    hashed, rows = TextFeatures.fit_transform(texts, TextSettings(**{**plain.to_dict(), "hash_bits": bits}))
    assert rows.shape == (len(texts), 2**bits)
    bucket = (features.to_arrays()["words.hashes"] >> np.uint64(64 - bits)).astype(np.int64)
    names = features.names(range(features.count))
    counter = word_oracle(sublinear_tf=False, use_idf=False, norm=None)
    counts = counter.fit_transform(seen_by_both(texts))
    column = {name: number for number, name in enumerate(counter.get_feature_names_out())}
    counts = counts[:, [column[name] for name in names]]
    added = counts @ sp.csr_array((np.ones(len(bucket)), (np.arange(len(bucket)), bucket)), (len(bucket), 2**bits))
    in_rows = np.diff(sp.csc_array(added).indptr)
    idf = np.log((1 + len(texts)) / (1 + in_rows)) + 1
    assert_same(rows, sp.csr_array(normalize(added.multiply(idf).tocsr())))
    assert hashed.to_arrays()["words.idf"][in_rows > 0] == pytest.approx(idf[in_rows > 0])
    with pytest.raises(HiNetError, match="no names"):
        hashed.names([0])


def test_min_df_counts_rows_and_max_features_keeps_the_most_frequent() -> None:
    texts = ["a a a b c", "b c d", "c", "D"]
    chosen = {"word_ngrams": (1, 1), "char_ngrams": None}
    every = {1: "abcd", 2: "bcd", 3: "c"}
    for min_df, names in every.items():
        features = TextFeatures.fit(texts, TextSettings(**chosen, min_df=min_df))
        assert sorted(features.names(range(features.count))) == list(names)
    for most, kept in ((1, {"c"}), (2, {"c"}), (3, {"b", "c", "d"}), (9, set("abcd"))):
        features = TextFeatures.fit(texts, TextSettings(**chosen, min_df=1, max_features=most))
        names = features.names(range(features.count))
        assert len(names) == min(most, 4)
        assert kept <= set(names)
        assert (np.diff(features.to_arrays()["words.hashes"].astype(float)) > 0).all()
    # Among equals the words stay before characters.
    features = TextFeatures.fit(["ab", "ab"], TextSettings(char_ngrams=(3, 5), max_features=1))
    assert features.names([0]) == ["ab"]


def test_auto_chooses_characters_for_short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hinet.data.text.features.FEW_TEXTS", 0)
    short, long = ["one two three"] * 4, ["word " * 20] * 4
    assert TextFeatures.fit(short).settings.char_ngrams == (3, 5)
    assert TextFeatures.fit(long).settings.char_ngrams is None
    assert TextFeatures.fit(long, TextSettings(char_ngrams=(3, 3))).settings.char_ngrams == (3, 3)
    assert TextFeatures.fit(long, TextSettings(word_ngrams=None)).settings.char_ngrams == (3, 5)
    assert TextFeatures.fit(["word " * 7, "word " * 8]).settings.char_ngrams == (3, 5)


@pytest.mark.parametrize(("name", "least"), [("FEW_TEXTS", 4), ("FEW_WORDS", 80)])
def test_auto_chooses_characters_for_few_long_texts(name: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    long = ["word " * 20] * 4
    for most, expected in ((least, (3, 5)), (least - 1, None)):
        monkeypatch.setattr(f"hinet.data.text.features.{name}", most)
        assert TextFeatures.fit(long).settings.char_ngrams == expected
        assert TextFeatures.fit_chunks(iter([long[:1], long[1:]])).settings.char_ngrams == expected


def test_auto_samples_the_first_texts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hinet.data.text.features.FEW_TEXTS", 0)
    monkeypatch.setattr("hinet.data.text.features.SAMPLE_TEXTS", 3)
    texts = ["one", "two one", "two", *["word " * 200] * 5]
    for chunks in ([texts], [texts[:1], texts[1:2], texts[2:]], [texts[:2], texts[2:]]):
        assert TextFeatures.fit_chunks(iter(chunks)).settings.char_ngrams == (3, 5)
    assert TextFeatures.fit_chunks(iter([texts[::-1]])).settings.char_ngrams is None


def test_empty_and_unknown_texts_are_empty_rows() -> None:
    features, rows = TextFeatures.fit_transform(["", "a b", "a b", " \t", "!?"], WORDS)
    assert np.diff(rows.indptr).tolist() == [0, 3, 3, 0, 0]
    assert features.transform(["", "zebra", "a zebra"]).nnz == 1
    nothing = features.transform([])
    assert nothing.shape == (0, features.count)


def test_a_word_that_fills_a_long_text_is_counted() -> None:
    features, rows = TextFeatures.fit_transform(
        ["echo " * 5000 + "a", "echo a"], TextSettings(word_ngrams=(1, 1), char_ngrams=None)
    )
    times = 1 + np.log(5000)
    echo = features.names([0, 1]).index("echo")
    assert rows[[0], [echo]][0] == pytest.approx(times / np.hypot(times, 1))


def series(texts: list[str]) -> Any:
    """Return a series that only speaks Arrow's protocol, as those of polars and pandas do."""

    class Series:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return pa.chunked_array([pa.array(texts, pa.string_view())]).__arrow_c_stream__(requested_schema)

    return Series()


class OnlyNumpy:
    def __init__(self, texts: list[Any]) -> None:
        self.texts = texts

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.texts, object)


CONTAINERS: dict[str, Callable[[list[str]], Any]] = {
    "tuple": tuple,
    "object array": lambda texts: np.array(texts, object),
    "unicode array": np.array,
    "list of Arrow's strings": lambda texts: list(pa.array(texts)),
    "string": lambda texts: pa.array(texts, pa.string()),
    "large string": lambda texts: pa.array(texts, pa.large_string()),
    "string view": lambda texts: pa.array(texts, pa.string_view()),
    "dictionary": lambda texts: pa.array(texts).dictionary_encode(),
    "dictionary of views": lambda texts: pa.DictionaryArray.from_arrays(
        pa.array(range(len(texts)), pa.uint32()), pa.array(texts, pa.string_view())
    ),
    "sliced": lambda texts: pa.array(["before", None, *texts, "after"]).slice(2, len(texts)),
    "sliced large": lambda texts: pa.array(["befóre", *texts, "after"], pa.large_string()).slice(1, len(texts)),
    "chunked": lambda texts: pa.chunked_array([texts[:1], [], texts[1:7], texts[7:]], pa.string()),
    "sliced chunked": lambda texts: pa.chunked_array([["x", *texts[:3]], texts[3:]]).slice(1),
    "arrow stream": series,
    "array protocol": OnlyNumpy,
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("extra", [[], ["Ménière's disease, ½", ""]], ids=["ascii", "unicode"])
def test_every_container_has_the_same_features(icd: list[str], container: str, extra: list[str]) -> None:
    texts = [*icd[:20], *extra, *icd[20:40]]
    features, rows = TextFeatures.fit_transform(texts, BOTH)
    again, same_rows = TextFeatures.fit_transform(CONTAINERS[container](texts), BOTH)
    assert state(again) == state(features)
    assert_identical(same_rows, rows)
    assert_identical(features.transform(CONTAINERS[container](texts)), rows)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None], "row 1: expected a text, got None; leave the row out"),
        (["a", "b", float("nan")], "row 2: expected a text, got float nan; leave the row out"),
        ([3], "row 0: expected a text, got int 3"),
        (["a", b"b"], "row 1: expected a text, got bytes b'b'"),
        ([b"b"], "row 0: expected a text, got bytes b'b'"),
        (["a", ["b"]], r"row 1: expected a text, got list \['b'\]"),
        (["a", "\ud800"], r"row 1: the text '\\ud800' has half of a surrogate pair"),
        (np.array(["a", np.nan], object), "row 1: expected a text, got float nan"),
        (OnlyNumpy(["a", 3]), "row 1: expected a text, got int 3"),
        (np.array([1.5]), "row 0: expected a text, got float64 1.5"),
        (np.array([["a"]]), "expected a list of texts, or an array or series of strings, got ndarray"),
        (pa.array(["a", None]), "row 1: expected a text, got a null"),
        (pa.array([1]), "got an array of type int64"),
        (pa.array([1]).dictionary_encode(), "got an array of type int64"),
        (pa.array(["a", None, "a"]).dictionary_encode(), "row 1: expected a text, got a null"),
        ("a text", "expected a list of texts, got one text 'a text'; put it into a list"),
        (iter(["a"]), "got list_iterator; fit_chunks takes a stream of lists"),
        (None, "got NoneType"),
    ],
)
def test_values_that_are_not_text_raise_with_the_row(texts: Any, message: str) -> None:
    with pytest.raises(HiNetError, match=message):
        TextFeatures.fit_transform(texts)


def test_errors_number_rows_across_chunks() -> None:
    with pytest.raises(HiNetError, match="row 3: expected a text, got None"):
        TextFeatures.fit_chunks([["a", "b"], ["a", None]])


def test_text_that_is_not_utf8_raises() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"a\xff")]
    )
    with pytest.raises(HiNetError, match="not valid UTF-8"):
        TextFeatures.fit(broken, TextSettings(min_df=1, char_ngrams=None))


@pytest.mark.parametrize("fit", [TextFeatures.fit, TextFeatures.fit_transform])
def test_texts_without_features_raise(fit: Callable[..., Any]) -> None:
    with pytest.raises(HiNetError, match="there are no training texts"):
        fit([])
    with pytest.raises(HiNetError, match="none of the 2 training texts has a word; is it the right column"):
        fit(["", " "])
    with pytest.raises(HiNetError, match="no feature is in at least 2 of the 2 training texts; lower `min_df`"):
        fit(["red", "blau"], TextSettings(min_df=2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"word_ngrams": (2, 1)}, r"word_ngrams: expected the shortest and longest length, such as \(1, 2\)"),
        ({"char_ngrams": (0, 3)}, r"char_ngrams: expected .* got \(0, 3\)"),
        ({"char_ngrams": "all"}, r"char_ngrams: expected .* got 'all'"),
        ({"word_ngrams": None, "char_ngrams": None}, "without n-grams a text has no features"),
        ({"char_weight": 0}, "char_weight: expected a number above 0, got 0; for no character n-grams"),
        ({"min_df": 0}, "min_df: expected a whole number of at least 1 or 'auto', got 0"),
        ({"min_df": 0.5}, "min_df: expected a whole number of at least 1 or 'auto', got 0.5"),
        ({"max_features": 0}, "max_features: .* None sets no limit"),
        ({"hash_bits": 40}, "hash_bits: expected a whole number from 1 to 26 or None, got 40"),
        ({"hash_bits": 8, "max_features": 9}, "hash_bits alone sets the number of features"),
    ],
)
def test_invalid_settings_raise(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(HiNetError, match=message):
        TextSettings(**wrong)


def test_names_and_threads_are_checked() -> None:
    features = TextFeatures.fit(["a b", "a b"], WORDS)
    with pytest.raises(HiNetError, match="expected features from 0 to 2, got 1 to 3"):
        features.names([1, 3])
    with pytest.raises(HiNetError, match="fit with `keep_names=True`"):
        TextFeatures.fit(["a b", "a b"], TextSettings(keep_names=False)).names([0])
    with pytest.raises(
        HiNetError,
        match="threads: expected a whole number other than 0 or None, got 0; -1 or None means one per core",
    ):
        features.transform(["a"], threads=0)


def test_every_ngram_of_few_texts_is_a_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hinet.data.text.features.MAX_TEXTS_FOR_ALL", 3)
    settings = TextSettings(word_ngrams=(1, 1), char_ngrams=None)
    for texts, least, names in (
        (["red apple", "green apple", "red"], 1, ["apple", "green", "red"]),
        (["red apple", "green apple", "red", "blue"], 2, ["apple", "red"]),
        (["red", "green", "blue", "grey"], 1, ["blue", "green", "grey", "red"]),
    ):
        features = TextFeatures.fit(texts, settings)
        assert features.settings.min_df == least
        assert sorted(features.names(range(features.count))) == names
        assert TextFeatures.from_arrays(features.to_arrays(), features.describe()).settings == features.settings
    with pytest.raises(
        HiNetError, match="no feature is in at least 2 of the 2 training texts; lower `min_df`, 1 keeps"
    ):
        TextFeatures.fit(["red", "green"], TextSettings(char_ngrams=None, min_df=2))


def test_a_text_that_is_too_long_raises_with_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_input, "MAX_TEXT_BYTES", 20)
    remedy = "more than 20; split it into several rows, or truncate it"
    features = TextFeatures.fit(["a short text", "x" * 20])
    for texts in (["short", "x" * 21], pa.array(["left out", "short", "ä" * 11]).slice(1)):
        with pytest.raises(HiNetError, match=f"row 1: the text has 2[12] bytes, {remedy}"):
            features.transform(texts)
    with pytest.raises(HiNetError, match=f"row 3: the text has 21 bytes, {remedy}"):
        TextFeatures.fit_chunks([["one", "two"], ["three", "x" * 21]])
    with pytest.raises(HiNetError, match=f"normalised, the text has 33 bytes, {remedy}"):
        features.transform(["\ufdfa"])  # three bytes that stand for eighteen letters
