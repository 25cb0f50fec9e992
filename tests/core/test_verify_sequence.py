"""Verification of paths and of several sequences: exact distributions of the emitted tokens, and samplers that follow them."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.stats import chisquare
from torch import Tensor

from draftlab.conformance import Budget, _path_distribution, check_sequence_distribution, check_verifier, sequences
from draftlab.core.tree import Tree
from draftlab.core.verify import PATH_VERIFIERS, TOKEN_VERIFIERS, TREE_VERIFIERS
from draftlab.core.verify.block import block
from draftlab.core.verify.optimum import optimum_iid
from draftlab.core.verify.path import PathVerifier, single_path
from draftlab.core.verify.rrs import rrs
from draftlab.core.verify.sequence import sequences_distribution, verify_sequences
from draftlab.core.verify.single import single
from draftlab.core.verify.specinfer import specinfer
from draftlab.errors import UserError
from tests.verify_cases import random_distribution, random_distributions

SIZES = [(3, 2, 2), (2, 3, 2), (3, 1, 3), (2, 2, 3)]
FITTING = [
    (name, *size)
    for name, verifier in TOKEN_VERIFIERS.items()
    for size in SIZES
    if size[2] <= size[0] or verifier.drafting in ("iid", "independent")  # distinct drafts need as many tokens
]


@pytest.mark.parametrize(("name", "vocab", "length", "drafts"), FITTING)
def test_sequence_distribution_is_the_targets(name: str, vocab: int, length: int, drafts: int) -> None:
    """Joint distribution of the first ``length + 1`` emitted tokens; the models depend on the context; different drafters where allowed."""
    verifier = TOKEN_VERIFIERS[name]
    actual = check_sequence_distribution(
        partial(sequences_distribution, verifier), verifier.drafting, vocab, length, drafts
    )
    assert actual.cases == vocab ** (length * drafts) or verifier.is_distinct
    assert actual.error <= 1e-12


@pytest.mark.parametrize("size", [(3, 2, 1), (3, 2, 2), (2, 3, 2), (2, 2, 3)])
@pytest.mark.parametrize("name", TREE_VERIFIERS)
def test_tree_verifiers_emit_the_targets_distribution(name: str, size: tuple[int, int, int]) -> None:
    """The first ``length + 1`` tokens over every set of drafted sequences; a stop is a distribution whatever was drafted."""
    actual = check_sequence_distribution(TREE_VERIFIERS[name].distribution, "iid", *size)
    assert actual.cases == size[0] ** (size[1] * size[2])
    assert actual.error <= 1e-12


@pytest.mark.parametrize(("size", "models"), [((3, 1, 3), 8), ((4, 1, 4), 2)])
@pytest.mark.parametrize("name", TREE_VERIFIERS)
def test_tree_verifiers_are_lossless_when_other_drafts_lie_between_equal_ones(
    name: str, size: tuple[int, int, int], models: int
) -> None:
    """Several models, because with one of them a verifier that judges a, b, a as a, a, b may pass by chance."""
    distribution = TREE_VERIFIERS[name].distribution
    errors = [check_sequence_distribution(distribution, "iid", *size, seed).error for seed in range(models)]
    assert max(errors) <= 1e-12


def kept_on_average(name: str, models: sequences._Models, length: int) -> float:
    """The tokens that a verifier keeps of drafted sequences of this length."""

    def kept(tokens: Tensor) -> float:
        along = models.along(tokens)
        if name in TREE_VERIFIERS:
            return sum(stop.chance * stop.length for stop in TREE_VERIFIERS[name].stops(*along, tokens))
        emitted = sequences_distribution(TOKEN_VERIFIERS[name], *along, tokens)
        return sum(share * (len(text) - 1) for text, share in emitted.items())

    return sum(drafted.chance * kept(drafted.tokens) for drafted in sequences._enumerate_drafts(models, "iid", length))


def test_a_selected_path_keeps_no_fewer_tokens_as_a_block() -> None:
    """The key tournament's path, block by block against token by token; strictly more somewhere."""
    gains = []
    for seed in range(4):
        models = sequences._models("iid", 3, 2, 2, seed)
        gains.append(kept_on_average("optimal_block", models, 2) - kept_on_average("optimal", models, 2))
    assert min(gains) > -1e-12
    assert max(gains) > 1e-3


@pytest.mark.parametrize("size", [(2, 2, 2), (2, 3, 2), (3, 2, 2), (2, 2, 3)])
def test_greedy_block_verifies_against_the_distribution_of_the_path_that_is_selected(
    size: tuple[int, int, int],
) -> None:
    """Greedy multi-path block verification (arXiv 2602.16961), from every set of paths: the highest in the order of ratios, depth by depth, is
    selected. A path that is drawn so keeps i tokens with ``min_(j <= i) r(first j) / q(first j)``. It once was verified given how many drafts share it,
    which keeps less."""
    vocab, length, drafts = size
    for seed in range(3):
        models = sequences._models("iid", vocab, length, drafts, seed)
        paths = [path for depth in range(1, length + 1) for path in itertools.product(range(vocab), repeat=depth)]
        of_target, of_path = ({(): 1.0} for _ in range(2))
        for path in paths:
            of_target[path] = of_target[path[:-1]] * float(models.target[path[:-1]][path[-1]])

        def height(path: tuple[int, ...], models: sequences._Models = models) -> list[float]:
            return [float(models.target[path[:i]][x] / models.drafts[0][path[:i]][x]) for i, x in enumerate(path)]

        of_path |= dict.fromkeys(paths, 0.0)
        for drafted in sequences._enumerate_drafts(models, "iid", length):
            selected = max(map(tuple, drafted.tokens.tolist()), key=height)
            for depth in range(1, length + 1):
                of_path[selected[:depth]] += drafted.chance
        expected = sum(
            min(of_path[path[:i]] * of_target[path] / of_target[path[:i]] for i in range(len(path) + 1))
            for path in paths
        )
        assert kept_on_average("greedy_block", models, length) == pytest.approx(expected, abs=1e-12)


def most_of_any_plan(models: sequences._Models, length: int) -> float:
    """The most that any plan keeps which hands the target on unchanged: a program over the probability that a drafted set stops at a node.

    A node is accepted with all nodes below it. Its children together emit the target's next token, so each gets at most the target's share of it.
    """
    drafts = list(sequences._enumerate_drafts(models, "iid", length))
    nodes = [u for size in range(length + 1) for u in itertools.product(range(len(models.target[()])), repeat=size)]
    stops = [
        (number, node)
        for number, drafted in enumerate(drafts)
        for node in sorted({tuple(path[:size]) for path in drafted.tokens.tolist() for size in range(length + 1)})
    ]
    accepted = {node: np.array([float(stop[: len(node)] == node) for _, stop in stops]) for node in nodes}
    limits = [accepted[node] - float(models.target[node[:-1]][node[-1]]) * accepted[node[:-1]] for node in nodes[1:]]
    of_set = [[float(own == number) for own, _ in stops] for number in range(len(drafts))]
    chances = [drafted.chance for drafted in drafts]
    value = np.sum([accepted[node] for node in nodes[1:]], axis=0)
    found = linprog(-value, A_ub=np.stack(limits), b_ub=np.zeros(len(limits)), A_eq=of_set, b_eq=chances)
    return float(-found.fun)


def test_the_best_plan_for_every_node_is_near_the_best_of_all_plans() -> None:
    """It is the best with one sequence and for one depth. In between, it closes much of what a selected path leaves, if not in every case."""
    lost, lost_by_one_path = 0.0, 0.0
    for drafts, length, vocab in [(1, 3, 2), (3, 1, 3), (2, 2, 2), (2, 2, 3), (3, 2, 2), (2, 3, 2), (4, 2, 2)]:
        for seed in range(2):
            models = sequences._models("iid", vocab, length, drafts, seed)
            best, kept = most_of_any_plan(models, length), kept_on_average("transport", models, length)
            assert kept <= best + 1e-9
            assert kept > kept_on_average("traversal", models, length) - 1e-9
            if drafts == 1 or length == 1:
                assert kept == pytest.approx(best)
            lost += best - kept
            lost_by_one_path += best - kept_on_average("optimal_block", models, length)
    assert lost < 2 / 3 * lost_by_one_path


def test_what_spectr_gbv_wants_to_keep_is_possible_and_not_the_optimum() -> None:
    """``q (1 - (1 - min(1, p/q))^K)`` of each prefix (arXiv 2604.25925): no set of them gets more than is drafted, nor all of them the optimum."""
    sets = [torch.tensor(chosen) for size in range(1, 7) for chosen in itertools.combinations(range(6), size)]
    for drafts in (1, 2, 4):
        missed = []
        for seed in range(8):
            q, p = random_distributions(2, 6, seed=seed)
            wanted = q * (1 - (1 - (p / q).clamp_max(1)) ** drafts)
            for chosen in sets:
                assert wanted[chosen].sum() <= 1 - (1 - p[chosen].sum()).clamp_min(0) ** drafts + 1e-12
            missed.append(float(optimum_iid(q[None], p[None], drafts) - wanted.sum()))
        assert min(missed) > -1e-12
        assert (max(missed) > 0.01) == (drafts > 1)


@pytest.mark.parametrize("name", PATH_VERIFIERS)
def test_path_verifiers_are_lossless(name: str) -> None:
    verdict = check_verifier(PATH_VERIFIERS[name], budget=Budget(max_samples=5000))
    assert verdict.exact["sequence distribution"].cases == 27
    assert verdict.lossless


@pytest.mark.parametrize("name", [*PATH_VERIFIERS, *TREE_VERIFIERS])
def test_distributions_near_a_point_mass_are_verified_to_the_last_digits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where two distributions differ by 1e-14 or less, so do the probabilities that decide; a sum with 1 would lose most of their digits."""
    generator = torch.Generator().manual_seed(0)

    def models(drafting: str, vocab: int, length: int, drafts: int, *_: int) -> sequences._Models:
        contexts = [c for size in range(length + 1) for c in itertools.product(range(vocab), repeat=size)]
        target, draft = ({c: random_distribution(vocab, generator) for c in contexts} for _ in range(2))
        return sequences._Models(target, [draft] * drafts)

    monkeypatch.setattr(sequences, "_models", models)
    verifier = (PATH_VERIFIERS | TREE_VERIFIERS)[name]
    distribution = (
        partial(_path_distribution, verifier) if isinstance(verifier, PathVerifier) else verifier.distribution
    )
    size = (2, 3, 1) if isinstance(verifier, PathVerifier) else (2, 2, 2)
    errors = [check_sequence_distribution(distribution, "iid", *size).error for _ in range(40)]
    assert max(errors) < 1e-12


def test_single_path_is_single_drafts_in_a_row() -> None:
    target, draft = random_distributions(4, 5, seed=1), random_distributions(3, 5, seed=2)
    tokens = torch.tensor([1, 4, 2])
    actual = single_path.distribution(target, draft, tokens)
    stands = 1.0
    for i, token in enumerate(tokens.tolist()):
        distribution = single.distribution(target[i], draft[i : i + 1], tokens[i : i + 1])
        elsewhere = distribution.clone()
        elsewhere[token] = 0  # the residual never gives back a rejected draft, so its mass is that of acceptance
        torch.testing.assert_close(actual[i], stands * elsewhere)
        stands *= float(distribution[token])
    torch.testing.assert_close(actual[3], stands * target[3])


def test_block_verification_keeps_at_least_as_many_tokens() -> None:
    gains = []
    for seed in range(12):
        target, draft = random_distributions(4, 4, seed=seed), random_distributions(3, 4, seed=100 + seed)
        paths = torch.cartesian_prod(*[torch.arange(4)] * 3)
        chance = draft[torch.arange(3), paths].prod(-1)
        lengths = torch.arange(4, dtype=torch.float64)
        kept = [
            sum(
                float(p * (v.distribution(target, draft, path).sum(-1) @ lengths))
                for p, path in zip(chance, paths, strict=True)
            )
            for v in (single_path, block)
        ]
        gains.append(kept[1] - kept[0])
    assert min(gains) >= -1e-12
    assert max(gains) > 0.01


def test_hsd_is_block_verification() -> None:
    """HSD (arXiv 2601.05724) from its own terms, joint probabilities and branch divergences: the stops of block verification."""
    capped = 0
    for seed in range(40):
        target, draft = random_distributions(5, 3, seed=seed), random_distributions(4, 3, seed=100 + seed)
        tokens = torch.randint(3, (4,), generator=torch.Generator().manual_seed(seed))
        places = torch.arange(4)
        ratio = torch.cat(
            [torch.ones(1, dtype=torch.float64), (target[places, tokens] / draft[places, tokens]).cumprod(0)]
        )
        prefix = ratio / ratio.cummax(0).values  # the joint ratio over the largest before it, 1 at least
        capped += int((ratio > 1).any())
        stays = []
        for depth in range(4):
            excess = (prefix[depth] * target[depth] - draft[depth]).clamp_min(0).sum()
            deficit = (draft[depth] - prefix[depth] * target[depth]).clamp_min(0).sum()
            stays.append(excess / deficit)
        stop, left = [], 1.0
        for chance in reversed([*stays, prefix[4]]):  # from the whole path back
            stop.insert(0, left * float(chance))
            left *= 1 - float(chance)
        assert left == pytest.approx(0, abs=1e-12)
        torch.testing.assert_close(
            block.decide(target[None], draft[None], tokens[None]).stop[0], torch.tensor(stop, dtype=torch.float64)
        )
    assert capped > 10


@pytest.mark.parametrize("name", PATH_VERIFIERS)
def test_path_sampler_follows_its_distribution(name: str) -> None:
    verifier = PATH_VERIFIERS[name]
    target, draft = random_distributions(4, 4, seed=3), random_distributions(3, 4, seed=4)
    generator = torch.Generator().manual_seed(5)
    for tokens in ([0, 1, 2], [3, 3, 1], [2, 0, 0]):
        path = torch.tensor(tokens)
        distribution = verifier.distribution(target, draft, path).flatten()
        length, token = verifier.sample(
            target.expand(40_000, -1, -1), draft.expand(40_000, -1, -1), path.expand(40_000, -1), generator
        )
        counts = torch.bincount(length * 4 + token, minlength=16)
        assert int(counts[distribution == 0].sum()) == 0
        assert (
            chisquare(counts[distribution > 0], distribution[distribution > 0] / distribution.sum() * 40_000).pvalue
            > 1e-4
        )


def test_equal_distributions_keep_the_whole_path() -> None:
    target = random_distributions(3, 4, seed=6)
    tokens = torch.tensor([2, 1])
    for verifier in PATH_VERIFIERS.values():
        distribution = verifier.distribution(target, target[:2], tokens)
        torch.testing.assert_close(distribution[2], target[2])
        assert float(distribution[:2].sum()) == pytest.approx(0, abs=1e-15)


def test_a_path_needs_a_bonus_distribution_and_at_least_one_token() -> None:
    target = random_distributions(3, 4, seed=7)
    with pytest.raises(UserError, match="3 target distributions for a path of 3 tokens"):
        single_path.distribution(target, target, torch.tensor([0, 1, 2]))
    with pytest.raises(UserError, match="1 target distributions for a path of 0 tokens"):
        block.distribution(target[:1], target[:0], torch.zeros(0, dtype=torch.int64))
    with pytest.raises(UserError, match=r"tokens\[1, 0\] is outside the vocabulary"):
        block.distribution(target, target[:2], torch.tensor([0, 4]))


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("name", TOKEN_VERIFIERS)
def test_walk_follows_its_distribution(name: str, truncated: bool) -> None:
    """On whole tables, and on the few tokens that a truncation leaves of a larger vocabulary."""
    verifier = TOKEN_VERIFIERS[name]
    count = 1000 if name in ("importance", "gls") else 20_000  # these compute each row by itself
    tokens = torch.tensor([[0, 1], [2, 0], [1, 1]])  # distinct first tokens: fits every way of drafting
    if verifier.drafting in ("iid", "independent"):
        tokens = torch.tensor([[0, 1], [0, 2], [1, 1]])
    shared, draft_shared = random_distributions(3, 3, seed=8), random_distributions(1, 3, seed=9)
    # Distributions at a depth depend on the path so far: here on its first token.
    target = torch.stack(
        [
            torch.stack([shared[0], random_distributions(3, seed=20 + x), random_distributions(3, seed=30 + x)])
            for x in tokens[:, 0].tolist()
        ]
    )
    draft = torch.stack(
        [torch.stack([draft_shared[0], random_distributions(3, seed=40 + x)]) for x in tokens[:, 0].tolist()]
    )
    distribution = sequences_distribution(verifier, target, draft, tokens)
    assert sum(distribution.values()) == pytest.approx(1, abs=1e-12)
    places = torch.tensor([1, 4, 6])  # of the three tokens in a vocabulary of eight
    wide = [torch.zeros(*distributions.shape[:-1], 8, dtype=distributions.dtype) for distributions in (target, draft)]
    for table, distributions in zip(wide, (target, draft), strict=True):
        table[..., places] = distributions
    tokens = places[tokens]
    distribution = {tuple(places[list(prefix)].tolist()): chance for prefix, chance in distribution.items()}
    actual = verify_sequences(
        verifier,
        wide[0].expand(count, -1, -1, -1),
        wide[1].expand(count, -1, -1, -1),
        tokens.expand(count, -1, -1),
        torch.Generator().manual_seed(10),
        truncated=truncated,
    )
    emitted: dict[tuple[int, ...], int] = dict.fromkeys(distribution, 0)
    for path, length, token in zip(actual.path.tolist(), actual.length.tolist(), actual.token.tolist(), strict=True):
        emitted[(*tokens[path, :length].tolist(), token)] += 1
    counts = torch.tensor(list(emitted.values()))
    expected = torch.tensor(list(distribution.values()), dtype=torch.float64)
    assert chisquare(counts, expected / expected.sum() * count).pvalue > 1e-4


def test_leaves_of_a_tree_share_their_drafts() -> None:
    """Two leaves below one sibling bring one draft, not two: siblings are distinct without replacement."""
    target, draft = (
        random_distributions(1, 3, 4, seed=11).expand(4, -1, -1),
        random_distributions(1, 2, 4, seed=12).expand(4, -1, -1),
    )
    leaves = torch.tensor([[0, 1], [0, 2], [3, 1], [3, 0]])
    distribution = sequences_distribution(rrs, target, draft, leaves)
    first = rrs.distribution(target[0, 0], draft[[0, 2], 0], torch.tensor([0, 3]))
    marginal = torch.zeros(4, dtype=torch.float64)
    for emitted, chance in distribution.items():
        marginal[emitted[0]] += chance
    torch.testing.assert_close(marginal, first)


def test_of_equal_siblings_the_path_that_was_judged_deepest_is_the_outcome() -> None:
    """Both siblings are accepted. One ends there, and the other has a child, which is judged and rejected."""
    tree = Tree.of_parents([-1, 0, 0, 2])
    target = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(1, 2, 3, 2)
    draft = torch.full((1, 2, 2, 2), 0.5, dtype=torch.float64)
    tokens = torch.tensor([[[0, 0], [0, 1]]])
    outcome = verify_sequences(specinfer, target, draft, tokens, torch.Generator().manual_seed(0), tree=tree)
    assert [int(value) for value in (outcome.path, outcome.length, outcome.token)] == [1, 1, 0]


@pytest.mark.parametrize("name", TREE_VERIFIERS)
def test_tree_verifiers_let_go_of_the_distributions(name: str) -> None:
    """On a GPU they would fill the memory until Python looks for unreachable cycles."""
    target = random_distributions(2, 4, 3, 50, seed=0)
    draft, tokens = target[:, :1, :-1].expand(-1, 4, -1, -1).contiguous(), torch.randint(0, 50, (2, 4, 2))
    gc.collect()
    gc.disable()
    try:
        before = sum(type(one) is Tensor for one in gc.get_objects())
        TREE_VERIFIERS[name].sample(target, draft, tokens, torch.Generator().manual_seed(0), check=False)
        assert sum(type(one) is Tensor for one in gc.get_objects()) == before
    finally:
        gc.enable()


@pytest.mark.parametrize("name", [*TREE_VERIFIERS, "specinfer"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda target, draft, tokens: (target.log(), draft, tokens), r"target_probs\[0, 0\] sums to -"),
        (lambda target, draft, tokens: (2 * target, draft, tokens), r"target_probs\[0, 0\] sums to 2, not 1"),
        (lambda target, draft, tokens: (target[:, :2], draft, tokens), "shapes do not fit"),
        (lambda target, draft, tokens: (target, draft, tokens[0]), "shapes do not fit"),
        (lambda target, draft, tokens: (target, draft, tokens + 3), "is outside the vocabulary"),
        (
            lambda target, draft, tokens: (torch.stack([target[0], target[1].flip(0)]), draft, tokens),
            r"target_probs\[1, 0\] is not what another sequence has after the same tokens",
        ),
    ],
)
def test_sequences_that_do_not_fit_are_refused(name: str, change: Callable[..., Any], message: str) -> None:
    """Trees were verified with logits, and with distributions that differed after the same tokens; their output was then no distribution."""
    target, draft = (random_distributions(1, n, 4, seed=n).expand(2, -1, -1) for n in (3, 2))
    given = change(target, draft, torch.tensor([[0, 1], [0, 2]]))
    drawn = torch.Generator().manual_seed(0)
    if name == "specinfer":
        checked = (
            lambda: sequences_distribution(specinfer, *given),
            lambda: verify_sequences(specinfer, *(table[None] for table in given), drawn),
        )
    else:
        verifier = TREE_VERIFIERS[name]
        checked = (
            lambda: verifier.distribution(*given),
            lambda: verifier.sample(*(table[None] for table in given), drawn),
        )
    with pytest.raises(UserError, match=message):
        checked[0]()
    with pytest.raises(UserError):
        checked[1]()


@pytest.mark.parametrize("name", TREE_VERIFIERS)
def test_sequences_in_single_precision_are_verified_in_double(name: str) -> None:
    """``optimal_block`` said that its own function returned no stops."""
    target, draft = (random_distributions(1, n, 4, seed=n).expand(2, -1, -1).float() for n in (3, 2))
    found = TREE_VERIFIERS[name].distribution(target, draft.requires_grad_(), torch.tensor([[0, 1], [2, 3]]))
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", PATH_VERIFIERS)
def test_a_path_with_other_axes_is_refused(name: str) -> None:
    """The distribution takes one path and the sampler a batch of them; torch spoke of indices."""
    verifier, given = (
        PATH_VERIFIERS[name],
        (*(random_distributions(n, 4, seed=n) for n in (3, 2)), torch.tensor([0, 1])),
    )
    with pytest.raises(UserError, match=r"shapes do not fit.*no batch axis"):
        verifier.distribution(*(table[None] for table in given))
    with pytest.raises(UserError, match=r"shapes do not fit.*one batch axis"):
        verifier.sample(*given, torch.Generator())
