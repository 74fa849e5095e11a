"""Each claim of a notebook, and the cell that measures it: section, what is claimed, code, output.

An assertion in the code is a measurement too; then the output is empty.
"""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent

CLAIMS = {
    "01": [
        ("1 A soft look-up", "a dictionary knows no nearly", 'library.get("cat")', r"None"),
        (
            "2 By hand",
            "softmax never says never: a score of 0 gets a share",
            "power / sum(exps)",
            r"chased 1.00 / 6.44 = 0.16",
        ),
        ("2 By hand", "the output depends on the other words", "without = x *", r"\[0\.84, 0\.0\]"),
        (
            "3 All words at once",
            "the matrix product gives the loop's numbers",
            "assert_allclose(all_weights[2], weights)",
            "",
        ),
        ("3 All words at once", "each row adds up to 1", "all_weights.sum(axis=1), np.ones(3)", ""),
        ("4 The same in torch", "torch gives the same", "assert_allclose(W @ X, outputs)", ""),
        (
            "4 The same in torch",
            "the course's function is PyTorch's",
            "F.scaled_dot_product_attention(X, X, X",
            "",
        ),
        (
            "5 Softmax and its trap",
            "exp overflows from 89 and 710",
            "np.isfinite(np.exp(kind(s)))",
            r"exp\(88\)[\s\S]*exp\(709\)",
        ),
        (
            "5 Softmax and its trap",
            "uniform inputs make every share NaN",
            "rng.random((4, 512))",
            r"NaN: 100%",
        ),
        (
            "5 Softmax and its trap",
            "stable softmax survives, one-hot",
            "softmax(large)",
            r"\[1\.0, 0\.0, 0\.0, 0\.0\]",
        ),
        ("6 Real words", "the vectors know words", "nearest(word, 4)", r"cat \[\('cats'"),
        (
            "6 Real words",
            "likeness does not link verb and subject",
            "cosine(x, x)",
            r"mouse \(0\.225\).*chased: -0\.005",
        ),
        (
            "6 Real words",
            "length decides how sharp attention is",
            "loud @ loud.T",
            r"0\.50  1\.00  1\.00  0\.50  1\.00",
        ),
        ("7 Live", "2 to the entropy counts equal shares", "2**H", r"2 bits, as spread out as 4"),
        (
            "8 Why not a chain or a window",
            "an RNN forgets, attention falls as 1/n",
            "influence(rnn, n)",
            r"64 words:  RNN \de-2\d   attention 0\.05 = 2\.9 / 64",
        ),
        ("8 Why not a chain or a window", "layers of a window of three", "layers_needed(n)", r"64: 63"),
        (
            "8 Why not a chain or a window",
            "patches of an image are a sequence",
            "patches = image",
            r"likeness, not nearness",
        ),
        (
            "9 What is missing",
            "order is invisible: outputs move along",
            "twin_outputs[place]",
            r"cat in the chase: (\[.*\])\ncat in the twin: \1",
        ),
        ("9 What is missing", "weights are permuted on both axes", "twin_weights[place][:, place]", ""),
        ("9 What is missing", "scores are symmetric", "cosine(x, x).T", ""),
        (
            "9 What is missing",
            "each word attends to itself",
            "torch.randn(200, 10, d)",
            r"8: 0\.53[\s\S]*512: 1\.00",
        ),
    ],
    "02": [
        ("1 Three roles", "an action finds the animals", "weights @ v", r"chased \[0\.49, 0\.02, 0\.49\]"),
        ("1 Three roles", "the two directions differ", "scores[1, 0]", r"cat: 3\.0 .* chased: 0\.0"),
        ("2 Shapes", "the output is as wide as a value", "tuple(outputs.shape)", r"outputs \(5, 4\)"),
        ("2 Shapes", "the course's function does these steps", "assert_allclose(out, outputs", ""),
        ("2 Shapes", "the printed shapes of a tutorial do not multiply", "64, 32", r"\(4x8 and 64x32\)"),
        (
            "3 Why two matrices for the scores",
            "one matrix makes scores symmetric",
            "asymmetry(Q @ Q.T)",
            r"one matrix:   0\.00",
        ),
        (
            "3 Why two matrices for the scores",
            "one matrix cannot look round a ring",
            "learn(True)",
            r"1\.00 with two matrices, 0\.33 with one",
        ),
        (
            "3 Why two matrices for the scores",
            "a real head needs both",
            "keys as queries",
            r"queries +word before 1\.00[\s\S]*keys as queries  word before 0\.00   itself 1\.00",
        ),
        ("3 Why two matrices for the scores", "only the product matters", "X @ M @ X.T", r"rank 8\n"),
        (
            "3 Why two matrices for the scores",
            "a query's numbers have no meaning alone",
            "other_Q @ other_K.T",
            "",
        ),
        ("4 Why values", "a mixture stays between what it mixes", "mixed > low", ""),
        (
            "4 Why values",
            "W_V may come after the mixing",
            "mixed @ W_V",
            r"first: 7680 \+ 100 [\s\S]*last:  9600 \+ 7680",
        ),
        (
            "5 A good start",
            "randn is d_model times too large",
            "rules.items()",
            r"512  randn  .*±51\d\.\d  largest 1\.00",
        ),
        ("6 As a module", "Linear stores its matrix turned over", "linear.weight.shape", r"\(8, 384\)"),
        ("6 As a module", "the module gives the same numbers", "assert_allclose(out, outputs", ""),
        (
            "6 As a module",
            "parameters do not depend on the length",
            "head.parameters()",
            r"for 5 words and for 50",
        ),
        ("7 A batch", "sentences of a batch are alone", "assert_allclose(batch_out[1], head(twin", ""),
        (
            "7 A batch",
            "with its axes exchanged, a batch mixes",
            "def first_number",
            r"twin: right (\S+), turned (\S+)\n.*dog: right \1, turned (?!\2)",
        ),
        ("8 Live", "the figure counts its parameters", "live = LiveFigure", r"hold 320 numbers"),
        ("9 Two sequences", "one row per query, one column per key", "head(asking, X)", r"\(3, 5\)"),
        (
            "9 Two sequences",
            "attention(x, x, x) has three projections",
            "in (head.query, head.key, head.value)",
            r"cat: (\S+) .*\ncat: (?!\1)(\S+) .*\ncat: (?!\1|\2)",
        ),
    ],
    "03": [
        (
            "1 Four operations",
            "the four lines are PyTorch's function",
            "F.scaled_dot_product_attention(q, k, v), output",
            "",
        ),
        (
            "2 How large is a dot product",
            "its variance is d_k",
            "many_q * many_k",
            r"1024 +variance / d_k = 1\.00",
        ),
        (
            "3 What large scores do",
            "raw scores saturate",
            "equal_shares(d_k, False)",
            r"1024   raw  1\.09   divided 10\.[56]",
        ),
        (
            "3 What large scores do",
            "raw gradients are mostly small and on average large",
            "g.median(), g.mean()",
            r"512 raw +median +0\.20  mean 28\.\d+\nd_k  512 divided +median +6\.\d+  mean +6\.",
        ),
        (
            "3 What large scores do",
            "the division does not help against large queries",
            "size=10.0",
            r"shares 1\.35 of 16",
        ),
        (
            "3 What large scores do",
            "there are settings in which it decides, and others",
            "fetch_next(scaled, size)",
            r"1\.0:  divided 1\.00   raw 0\.[1-8]\d\nsize 0\.1:  divided 1\.00   raw 1\.00",
        ),
        (
            "4 The root and nothing else",
            "the divisor can be measured",
            "measured_divisor(F.",
            r"by 4\.000[\s\S]*by 8\.000",
        ),
        ("4 The root and nothing else", "np.sqrt makes float64", "np.sqrt(8)", "float64 float32"),
        (
            "5 Hiding the future",
            "times 0, after softmax: wrong",
            '"scores times 0"',
            r"times 0 +future 0\.9\d[\s\S]*0 after softmax +future 0\.00   row sum 0\.\d",
        ),
        (
            "5 Hiding the future",
            "after softmax the future leaks",
            "changed[4] += 1.0",
            r"before (0\.\d+), after (?!\1)",
        ),
        (
            "5 Hiding the future",
            "boolean, additive and is_causal are the same",
            "attention(q, k, v, m), out",
            "",
        ),
        (
            "5 Hiding the future",
            "1e-9 is no fill, float16 is short",
            "raw.half()",
            r"1e-09   future 0\.9\d+\nfloat16: .*overflow",
        ),
        ("6 Hiding padding", "zero keys get weight", "the padding gets", r"gets 39%"),
        ("6 Hiding padding", "hidden, the words come out as before", "assert_allclose(out[:5], output)", ""),
        ("6 Hiding padding", "rows blanked instead of columns", "w_wrong", r"still gets 39%"),
        (
            "6 Hiding padding",
            "the shapes of a mask for heads",
            "combine_masks(padding_mask(lengths[:, None]",
            r"\(2, 1, 9, 9\)",
        ),
        (
            "7 Empty rows and long rows",
            "an empty row is NaN or 0",
            '"by hand, -inf"',
            r"-inf +first row \[nan, nan\]\n.*-1e9 +first row \[0\.2, 0\.2\]\nF\..* \[0\.0, 0\.0\]",
        ),
        (
            "7 Empty rows and long rows",
            "PyTorch's conventions are opposite",
            "proper =",
            r"other way, word 2: \[0\.0, 0\.0",
        ),
        ("7 Empty rows and long rows", "is_causal is top-left", "causal_mask(2, 5)", r"\[\[1 0 0 0 0\]"),
        ("8 Dropout", "rows add up to 1 on average only", "dropped", r"mean of 5000 rows: (0\.99|1\.0)"),
        ("9 Against the reference", "outputs and gradients agree", "torch.autograd.grad", ""),
        ("10 Live", "the figure tells its sizes", "live = LiveFigure", r"Scores have size 8\.0"),
        (
            "11 The failure gallery",
            "the doctor names a multiplied mask",
            "almost_right",
            r"mask fill near zero",
        ),
        (
            "11 The failure gallery",
            "after softmax, rows do not add up to 1",
            "gallery = LiveFigure",
            r"up to 0\.10, 0\.34",
        ),
    ],
    "04": [
        (
            "1 One softmax, one pattern",
            "one head cannot tell two neighbours, two can",
            "accuracy(model",
            r"1 head\(s\): 0\.1\d right\n2 head\(s\): 1\.00 right",
        ),
        (
            "1 One softmax, one pattern",
            "each of two heads takes a side",
            "heatmaps(learned",
            r"0\.04 before and 0\.60 after",
        ),
        ("2 Splitting", "a slice is what a narrow matrix gives", "assert_allclose(Q[:, columns]", ""),
        (
            "2 Splitting",
            "a bare view mixes tokens",
            "view: head 0",
            r"should hold 1\.0 and 1\.1.*holds 0\.2 and 0\.3",
        ),
        ("2 Splitting", "the error says which numbers fit", "num_heads=3", r"these do: 1, 2, 4, 8, 16"),
        ("3 Joining", "merging is splitting backwards", "joined = merge_heads(found)", ""),
        ("3 Joining", "without the transpose words are mixed", "same numbers", r"same numbers: False"),
        ("3 Joining", "joined and projected is a sum over heads", "assert_allclose(output, summed", ""),
        (
            "3 Joining",
            "heads change no parameter count",
            "MultiHeadAttention(512, heads)",
            r"(1 heads: 1,050,624[\s\S]*64 heads: 1,050,624)",
        ),
        ("4 The module", "it is PyTorch's", "assert_allclose(w, w_theirs", ""),
        ("4 The module", "without batch_first it attends across sentences", "forgetful", r"\(5, 2, 2\)"),
        (
            "4 The module",
            "a printed module sees one key per query",
            "printed(batch[0], 4)",
            r"\(5, 4, 1, 1\) all 1: True",
        ),
        (
            "5 Self, cross and masked",
            "outputs have the query's rows, weights the key's columns",
            "cross = mha(target, source",
            r"output \(2, 5, 16\)  weights \(2, 4, 5, 7\)",
        ),
        ("6 Live: heads", "the figure counts parameters", "live = LiveFigure", r"has 16,640 parameters"),
        ("7 Real heads", "our module gives the real model's weights", "assert_allclose(loaded, asked", ""),
        (
            "7 Real heads",
            "what a real head looks at",
            "browser = LiveFigure",
            r"“it” attends most to “animal”, with weight 0\.64",
        ),
        (
            "7 Real heads",
            "descriptions have numbers and chance beside them",
            "random_maps",
            r"before +1\.00 .* 0\.[12]\d\n.*next word +0\.55[\s\S]*CLS\] +0\.90",
        ),
        (
            "7 Real heads",
            "the word before is found by places",
            "word_before(words, [0] * 15)",
            r"1\.00\nwithout places 0\.09\n15 other words 1\.00",
        ),
        (
            "8 What a head does not tell",
            "the best head is little better than a coin",
            "correct = better",
            r"26 of 40. Best of 72 heads: 26\n.*both right 6, one 14, none 0",
        ),
        ("8 What a head does not tell", "coins do as well", "coins.mean()", r"average: 27\.\d of 40"),
        ("8 What a head does not tell", "it leans the right way", "here > there", r"17 of 20"),
        ("9 Speed", "three ways to the same numbers", "assert_allclose(result, results[0]", ""),
    ],
    "05": [
        (
            "1 Order is invisible",
            "shuffled words give shuffled outputs, weights on both axes",
            "w_2, w[:, :, order]",
            "",
        ),
        (
            "1 Order is invisible",
            "a causal mask alone breaks it",
            "masked_2 - masked",
            r"differently: [89] of 9",
        ),
        ("2 A clock with many hands", "the formula gives the table", "assert_allclose(PE, sinusoidal", ""),
        (
            "2 A clock with many hands",
            "printed code stops at odd widths",
            "printed(50, 7)",
            r"\(3\) must match the existing size \(4\)[\s\S]*\(50, 7\)",
        ),
        ("3 What the table gives, and what not", "rows have equal length", "(P**2).sum(dim=-1)", ""),
        ("3 What the table gives, and what not", "a step is a rotation", "P[:-k] @ rotation", ""),
        (
            "3 What the table gives, and what not",
            "the dot product is not monotone",
            "rises",
            r"offsets \[\d+, ",
        ),
        (
            "3 What the table gives, and what not",
            "the table needs few directions",
            "svdvals",
            r"50 positions: 1\d of 384",
        ),
        (
            "3 What the table gives, and what not",
            "the root brings words to the size of places",
            "root = (word",
            r"word 0\.04, times root 1\.00, place 0\.71",
        ),
        (
            "3 What the table gives, and what not",
            "rotary and ALiBi depend on the distance alone",
            "spread = S.diagonal",
            r"added .*0\.[1-9]\d\nrotary .*0\.00\nALiBi .*0\.00",
        ),
        ("4 Live: positions", "a hand's turn", "positions = LiveFigure", r"Hand 3 of 16 needs 35\.3 steps"),
        ("5 The layer", "the plain layer is the course's", "assert_allclose(out, ours(x)[0]", r"1\.00 out"),
        (
            "5 The layer",
            "post-norm shrinks gradients on the way down",
            "arriving(norm, depth)",
            r"post  96 layers: 0\.[1-5]\d arrives[\s\S]*pre   96 layers: [12]\.\d\d arrives",
        ),
        ("6 It learns", "the weights are the mirror image", "heatmaps({", r"mean weight 0\.[6-9]\d"),
        (
            "7 Longer than in training",
            "it does not generalise",
            "old:.2f}, places 10-19",
            r"10: 1\.00 right\nlength 20: places 1-9 0\.[789]\d, places 10-19 0\.[123]\d",
        ),
        ("7 Longer than in training", "it accepts longer input", "max_len=512", r"\(1, 5001, 16\)"),
        ("8 Live: the layer", "the sizes of the stages", "live = LiveFigure", r"norm 1\.00"),
        (
            "9 Cheaper attention",
            "loop, mask and blocks agree",
            "efficient.local_attention(q, k, v, 4), wanted",
            "",
        ),
        (
            "9 Cheaper attention",
            "pairs are a mask's attention",
            "sparse_attention(q, k, v, pairs), wanted",
            "",
        ),
        (
            "9 Cheaper attention",
            "zeros filled in are no silence",
            "leak = softmax(filled)",
            r"[5-9]\d% of the weight",
        ),
        (
            "10 Heavy cells",
            "memory is predicted",
            "heavy.table_bytes(n, given)",
            r"65536 tokens:  128\.0 GiB",
        ),
        ("10 Heavy cells", "what does not fit is refused", "2**20, given", r"a million tokens: refused"),
        (
            "11 A layer that does not work",
            "the doctor names its faults",
            "diagnose(Suspicious())",
            r"2 faults: scale sqrt\(d_model\)",
        ),
    ],
}


def cells_by_section(number):
    path = next((ROOT / "notebooks").glob(f"{number}_*.ipynb"))
    section = ""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            section = ([section, *re.findall(r"(?m)^## (.+)$", cell.source)])[-1]
        else:
            yield section, cell


@pytest.mark.parametrize(
    ("number", "section", "claim", "code", "output"),
    [(n, *claim) for n, claims in CLAIMS.items() for claim in claims],
)
def test_a_cell_measures_the_claim(number, section, claim, code, output):
    found = [cell for where, cell in cells_by_section(number) if where == section and code in cell.source]
    assert found, f"no cell in “{section}” measures: {claim}"
    printed = "\n".join(
        o.get("text") or o.get("data", {}).get("text/plain", "") for cell in found for o in cell.outputs
    )
    assert re.search(output, printed) if output else "assert" in found[0].source


@pytest.mark.parametrize("number", CLAIMS)
def test_every_section_has_a_claim_that_is_measured(number):
    sections = {section for section, _ in cells_by_section(number) if re.match(r"\d", section)}
    assert sections == {section for section, *_ in CLAIMS[number]}
