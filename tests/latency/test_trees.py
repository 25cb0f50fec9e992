"""Trees in llama.cpp: each path as if it were alone, the text of plain decoding, and the blocks that replay counts."""

from collections.abc import Iterator
from pathlib import Path

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest
import torch

from draftlab.core.confident_tree import ConfidentTree
from draftlab.core.sampling import GREEDY, Sampling
from draftlab.core.tree import Tree
from draftlab.engine.replay_drafts import count_blocks
from draftlab.engine.replay_trees import confident_trees
from draftlab.errors import UserError
from draftlab.latency.cost_aware import AtLeast
from draftlab.latency.lookup import SURE, LookupBackend
from draftlab.latency.loop import decode, fixed, speculate
from draftlab.latency.trees import LookedUp, TreePair, most_probable, sequences_for, speculate_with_trees
from draftlab.models import load_model
from draftlab.models.backend import EngineOptions
from draftlab.models.gguf import export
from draftlab.models.llama_branches import TEXT, Branches
from draftlab.models.llama_cpp import BATCH, LlamaCpp
from draftlab.train.designs import trim_head
from tests.engine.test_speculate import near
from tests.models.test_lookup import passages
from tests.pair import small_llama

TREES = [ConfidentTree(6, 3, 4), ConfidentTree(12, 4, 2), ConfidentTree(1, 1, 3), ConfidentTree(5, 6, 5)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target, a draft that often agrees with it, and the same draft with a trimmed head."""
    folder = tmp_path_factory.mktemp("models")
    target = small_llama(32, 0, scale=4.0)
    with torch.no_grad():
        target.vocab_weight.mul_(8)
    draft = near(target, 0.3)
    for name, model in {"target": target, "draft": draft, "trimmed": trim_head(draft, list(range(2, 200, 3)))}.items():
        model.save(folder / name)
        export(folder / name, folder / f"{name}.gguf", vocabulary=False)
    return {name: folder / name for name in ("target", "draft", "trimmed")}


@pytest.fixture
def pair(models: dict[str, Path]) -> Iterator[tuple[LlamaCpp, LlamaCpp]]:
    engine = EngineOptions(context_length=256, sequences=max(map(sequences_for, TREES)), shared=True)
    target, draft = (models[name].with_suffix(".gguf") for name in ("target", "draft"))
    with LlamaCpp(target, engine) as big, LlamaCpp(draft, engine) as small:
        yield big, small


# --- one tree ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [False, True])
def test_each_path_of_a_tree_is_read_as_if_it_were_alone(pair: tuple[LlamaCpp, LlamaCpp], levels: bool) -> None:
    """An uneven tree, in one call or depth by depth: two nodes branch, and leaves are at three depths."""
    model, _ = pair
    tree, tokens = Tree.of_parents([-1, 0, 0, 0, 1, 1, 2, 4]), [10, 3, 7, 4, 5, 8, 9, 2]
    parents = [TEXT, *tree.parents[1:].tolist()]
    with LlamaCpp(model.path) as alone:
        for last in (10, 6):
            for one in (model, alone):
                one.trim(0)
                one.prefill([1, 5, 9])
            below, tokens[0] = Branches(model), last
            calls = [[0], [1, 2, 3], [4, 5, 6], [7]] if levels else [list(range(8))]
            logits = np.concatenate(
                [below.read([tokens[i] for i in call], [parents[i] for i in call]).copy() for call in calls]
            )
            assert len(logits) == len(tokens), "each token is read once"
            for path in tree.paths.tolist():
                nodes = list(dict.fromkeys(path))
                np.testing.assert_allclose(logits[nodes], alone.extend([tokens[node] for node in nodes]), atol=1e-4)
                alone.trim(3)


@pytest.mark.parametrize(("node", "kept"), [(TEXT, []), (0, [10]), (4, [10, 3, 5]), (7, [10, 3, 5, 2])])
def test_the_text_goes_on_after_any_node(pair: tuple[LlamaCpp, LlamaCpp], node: int, kept: list[int]) -> None:
    """Also after one whose path was read in several calls, and which has children."""
    model, _ = pair
    with LlamaCpp(model.path) as alone:
        for one in (model, alone):
            one.prefill([1, 5, 9])
        below = Branches(model)
        below.read([10, 3, 7], [TEXT, 0, 0])
        below.read([4, 5, 8], [1, 1, 2])
        below.read([9, 2], [4, 4])
        below.keep(node)
        assert model.tokens == [1, 5, 9, *kept]
        ends = [lib.llama_memory_seq_pos_max(model._memory, sequence) for sequence in range(model.settings.sequences)]
        assert ends == [2 + len(kept)] + [-1] * (len(ends) - 1)
        np.testing.assert_allclose(model.extend([6, 2]), alone.extend([*kept, 6, 2])[-2:], atol=1e-4)


def test_a_later_branch_sees_nothing_after_the_node_that_it_leaves(pair: tuple[LlamaCpp, LlamaCpp]) -> None:
    """The sequence that holds this node goes on with others."""
    model, _ = pair
    with LlamaCpp(model.path) as alone:
        for one in (model, alone):
            one.prefill([1, 5, 9])
        below = Branches(model)
        below.read([10, 3, 4], [TEXT, 0, 1])
        np.testing.assert_allclose(below.read([7], [0])[0], alone.extend([10, 7])[-1], atol=1e-4)


def test_the_draft_keeps_what_it_has_read_of_the_accepted_path(models: dict[str, Path]) -> None:
    """A draft that is always right has read all accepted tokens but the last of a block."""
    tree = ConfidentTree(4, 4, 1)
    engine = EngineOptions(context_length=256, sequences=sequences_for(tree), shared=True)
    file = models["target"].with_suffix(".gguf")
    with LlamaCpp(file, engine) as target, LlamaCpp(file, engine) as draft:
        found = speculate_with_trees(target, draft, [5, 9], 20, tree)
        assert [block.accepted for block in found.blocks] == [4] * 4
        assert (len(target.tokens), len(draft.tokens)) == (21, 20)


def test_a_tree_with_too_many_leaves_is_refused(models: dict[str, Path]) -> None:
    two = EngineOptions(sequences=3, shared=True)
    with (
        LlamaCpp(models["target"].with_suffix(".gguf"), two) as model,
        pytest.raises(UserError, match="a tree with more than 2 leaves"),
    ):
        Branches(model).read([3, 4, 5], [TEXT, TEXT, TEXT])


def test_the_most_probable_tokens_come_with_their_probabilities() -> None:
    logits = np.log(np.array([0.2, 0.5, 0.05, 0.25], dtype=np.float32))
    assert [token for token, _ in most_probable(logits, 3, 1.0)] == [1, 3, 0]
    assert [chance for _, chance in most_probable(logits, 3, 1.0)] == pytest.approx([0.5, 0.25, 0.2])
    assert [chance for _, chance in most_probable(logits, 9, 0.5)] == pytest.approx(
        [0.25 / 0.355, 0.0625 / 0.355, 0.04 / 0.355, 0.0025 / 0.355]
    )
    assert most_probable(logits, 1, 1e-308) == [(1, 1.0)]
    with pytest.raises(UserError, match="NaN"):
        most_probable(np.array([0, np.nan, 1], dtype=np.float32), 1, 1.0)


# --- whole answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.3), Sampling(1.3, top_p=0.7)])
@pytest.mark.parametrize("tree", TREES)
@torch.inference_mode()
def test_blocks_are_those_of_replay_and_the_text_that_of_plain_decoding(
    pair: tuple[LlamaCpp, LlamaCpp], models: dict[str, Path], tree: ConfidentTree, sampling: Sampling
) -> None:
    """At temperature 0 and, with the same random numbers, when sampling. Replay is an independent implementation, in torch."""
    draft, ranked, accepted = load_model(models["draft"]), Sampling(sampling.temperature or 1.0), 0
    for number, prompt in enumerate(passages(12)):
        options = [{"sampling": sampling, "rng": np.random.default_rng(number)} for _ in range(2)]
        found = speculate_with_trees(*pair, prompt, 16, tree, **options[0])
        assert found.tokens == decode(pair[0], prompt, 16, **options[1]).tokens
        shape = {"nodes": [tree.nodes], "depth": tree.depth, "width": tree.width}
        (kept,) = confident_trees(draft, [prompt], [found.tokens], ranked, **shape)
        counted = count_blocks(np.hstack([np.ones((len(kept), 1)), kept]), np.array([len(found.tokens)]))
        assert counted.stopped.sum() == len(found.blocks)
        accepted += sum(block.accepted for block in found.blocks[:-1])
        assert all(0 < block.drafted <= tree.nodes for block in found.blocks)
    assert accepted > 10


def test_texts_of_low_probability_are_left_out(pair: tuple[LlamaCpp, LlamaCpp]) -> None:
    drafted = []
    for min_value in (0.0, 0.1, 0.3, 1.1):
        found = [speculate_with_trees(*pair, prompt, 6, TREES[0], rule=AtLeast(min_value)) for prompt in passages(12)]
        assert [one.tokens for one in found] == [decode(pair[0], prompt, 6).tokens for prompt in passages(12)]
        drafted.append(sum(block.drafted for one in found for block in one.blocks))
    assert drafted[0] > drafted[1] > drafted[2] > drafted[3] == 0


def test_lookup_comes_before_the_draft_where_it_pays(pair: tuple[LlamaCpp, LlamaCpp]) -> None:
    """What is found is judged by how often it was right: never drafted if that is never worth a token."""
    prompts = [prompt * 2 for prompt in passages(12)]
    plain, found, rates = [decode(pair[0], prompt, 12).tokens for prompt in prompts], {}, []
    for name, at_least in {"all": 0.0, "likely": 0.4, "none": 1.1}.items():
        lookup, rule = LookedUp(), AtLeast(at_least)
        answers = [speculate_with_trees(*pair, prompt, 12, TREES[0], rule=rule, lookup=lookup) for prompt in prompts]
        assert [one.tokens for one in answers] == plain
        blocks = [block for one in answers for block in one.blocks]
        assert any(block.calls for block in blocks), "the draft, where nothing is found"
        found[name] = [block for block in blocks if block.drafted and not block.calls]
        assert all(block.drafted <= 3 for block in found[name]), "no deeper than a tree"
        lookup.in_a_row = 0
        rates += lookup.values(1)
    np.testing.assert_allclose(rates, rates[0], atol=0.1, err_msg="the texts are the same, but for the last blocks")
    assert len(found["all"]) > len(found["likely"]) > len(found["none"]) == 0


def test_what_was_found_is_counted_by_how_many_were_right_before() -> None:
    lookup = LookedUp()
    for found, token in [(5, 5), (6, 6), (7, 7), (8, 9), (None, 4), (3, 2), (3, 3)]:
        lookup.learn(found, token)
    first, second, third, fourth = (1 + 2) / (2 + 3), (1 + 1) / (2 + 1), (1 + 1) / (2 + 1), 1 / (2 + 1)
    assert lookup.values(3) == pytest.approx([second, second * third, second * third * fourth])
    lookup.learn(None, 8)
    assert lookup.values(2) == pytest.approx([first, first * second])
    for _ in range(100):
        lookup.learn(1, 1)
    assert lookup.values(9)[-1] > 0.8, "long runs go on"


def test_without_a_draft_it_is_prompt_lookup(pair: tuple[LlamaCpp, LlamaCpp]) -> None:
    """The blocks of ``LookupBackend``, one by one."""

    class Never(AtLeast):
        def asks(self) -> bool:
            return False

    accepted = 0
    for prompt in passages(12):
        found = speculate_with_trees(*pair, prompt, 16, TREES[0], rule=Never(0.0), lookup=LookedUp())
        other = speculate(pair[0], LookupBackend(pair[0]), prompt, 16, fixed(3), min_prob=SURE)
        both = [[(block.drafted, block.judged, block.accepted) for block in one.blocks] for one in (found, other)]
        assert both[0] == both[1]
        accepted += sum(block.accepted for block in found.blocks)
    assert accepted > 0


def test_a_draft_that_was_not_asked_for_long_reads_what_it_missed(models: dict[str, Path]) -> None:
    """Prompt lookup found hundreds of tokens one after the other: more than fit one call."""

    class Late(AtLeast):
        waits = BATCH + 10

        def asks(self) -> bool:
            self.waits -= 1
            return self.waits < 0

    engine = EngineOptions(context_length=2 * BATCH, sequences=sequences_for(TREES[0]), shared=True)
    target, draft = (models[name].with_suffix(".gguf") for name in ("target", "draft"))
    with LlamaCpp(target, engine) as big, LlamaCpp(draft, engine) as small:
        found = speculate_with_trees(big, small, [5, 9], BATCH + 40, TREES[0], rule=Late(0.0))
        assert found.tokens == decode(big, [5, 9], BATCH + 40).tokens
        assert any(block.calls for block in found.blocks), "the draft was asked in the end"


def test_a_trimmed_head_drafts_its_tokens(models: dict[str, Path]) -> None:
    engine = EngineOptions(context_length=256, sequences=sequences_for(TREES[0]), shared=True)
    target, trimmed = (models[name].with_suffix(".gguf") for name in ("target", "trimmed"))
    with LlamaCpp(target, engine) as big, LlamaCpp(trimmed, engine) as small:
        found = [speculate_with_trees(big, small, prompt, 12, TREES[0]) for prompt in passages(12)]
        assert [one.tokens for one in found] == [decode(big, prompt, 12).tokens for prompt in passages(12)]
        assert sum(block.accepted for one in found for block in one.blocks) > 10


def test_trees_end_with_the_answer_and_with_the_context(pair: tuple[LlamaCpp, LlamaCpp]) -> None:
    target, draft = pair
    text = decode(target, [5, 9], 40).tokens
    eos = {text[10]}
    expected = text[: text.index(text[10]) + 1]
    assert speculate_with_trees(*pair, [5, 9], 40, TREES[0], eos=eos).tokens == expected
    assert target.tokens == [5, 9, *expected][:-1]
    assert draft.tokens == target.tokens[: len(draft.tokens)]
    room = target.context_length - 2
    text = decode(target, [5, 9], room).tokens
    for tree in TREES:
        assert speculate_with_trees(*pair, [5, 9], room, tree).tokens == text


def test_at_each_depth_only_the_best_texts_are_extended(pair: tuple[LlamaCpp, LlamaCpp]) -> None:
    found = speculate_with_trees(*pair, [5, 9], 12, ConfidentTree(nodes=14, depth=3, width=2))
    assert {block.drafted for block in found.blocks} == {2 + 4 + 4}


def test_what_was_right_in_a_row_ends_with_its_text(pair: tuple[LlamaCpp, LlamaCpp]) -> None:
    lookup = LookedUp()
    lookup.learn(7, 7)
    TreePair(*pair, [5, 9], TREES[0], GREEDY, np.random.default_rng(0), AtLeast(0.0), lookup)
    assert lookup.in_a_row == 0


def test_another_engine_is_refused(pair: tuple[LlamaCpp, LlamaCpp]) -> None:
    from tests.latency.test_latency import bigram

    with pytest.raises(UserError, match="set backend to llama_cpp"):
        speculate_with_trees(bigram(8, 0), bigram(8, 1), [1, 2], 4, TREES[0])
