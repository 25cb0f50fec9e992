"""The optimisation loop: schedules, resume, and losses that are not numbers."""

import contextlib
import math

import pytest
import torch
from torch import nn

from draftlab.errors import UserError
from draftlab.train import training


def a_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def losses_of(model):
    def losses(step):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(16, 4, generator=generator)
        for half in inputs.chunk(2):
            yield (model(half)[:, 0] - half.sum(1)).square().mean() / 2

    return losses


def run(model, steps, checkpoint=None, identity="x", losses=None):
    return training.fit(
        model,
        losses or losses_of(model),
        training.Schedule(1e-2, steps, warmup=3),
        optimizer=training.adamw(model),
        checkpoint=checkpoint,
        identity=identity,
    )


def test_a_run_killed_at_any_step_ends_with_the_same_weights(tmp_path, monkeypatch):
    whole = a_model()
    run(whole, 40)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    for stop in (1, 7, 39):
        model, path = a_model(), tmp_path / f"{stop}.safetensors"
        inner = losses_of(model)

        def killed(step, inner=inner, stop=stop):
            if step == stop:
                raise KeyboardInterrupt
            return inner(step)

        with pytest.raises(KeyboardInterrupt):
            run(model, 40, path, losses=killed)
        resumed = a_model()
        steps_run = run(resumed, 40, path)
        assert len(steps_run) == 40 - stop
        for found, expected in zip(resumed.parameters(), whole.parameters(), strict=True):
            assert torch.equal(found, expected)
        assert not path.exists()


def test_what_takes_long_to_save_is_saved_more_rarely(tmp_path, monkeypatch):
    """A step takes 1 s. A save of 3 s is twice as long as a quick one, so it comes every 20 s instead of 10."""
    now, saves = [0.0], []

    def save(path, identity, model, optimizer, step, notes):
        saves.append(step)
        now[0] += 3.0

    def losses(step):
        now[0] += 1.0
        return a_loss(step)

    model = a_model()
    a_loss = losses_of(model)
    monkeypatch.setattr(training.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 9.5)
    monkeypatch.setattr(training, "save_checkpoint", save)
    run(model, 60, tmp_path / "state", losses=losses)
    assert saves == [10, 30, 50]


def test_a_gradient_that_is_no_number_is_refused():
    """The square root is 0 at 0, where its slope is infinite: the loss is finite, the gradient is not."""
    for clip in (0.0, 1.0):
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.AdamW([weight])
        with pytest.raises(UserError, match="the norm of the gradient is inf"):
            training.update(optimizer, [weight.sqrt().sum()], clip)
        assert torch.equal(weight, torch.zeros(1))


def test_a_checkpoint_of_other_settings_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    path = tmp_path / "c.safetensors"
    model = a_model()
    training.save_checkpoint(path, "other", model, training.adamw(model), 30, {})
    assert len(run(a_model(), 40, path, identity="mine")) == 40


@pytest.mark.parametrize(
    "damage", [lambda data: data[:100], lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda _: b""]
)
def test_a_damaged_checkpoint_is_ignored(tmp_path, damage):
    path = tmp_path / "c.safetensors"
    model = a_model()
    training.save_checkpoint(path, "x", model, training.adamw(model), 30, {})
    path.write_bytes(damage(path.read_bytes()))
    assert len(run(a_model(), 5, path)) == 5


def test_accumulated_micro_batches_are_one_step():
    one, two = a_model(), a_model()
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(3))

    def loss(model, rows):
        return (model(rows)[:, 0] - rows.sum(1)).square().sum() / 16

    training.update(training.adamw(one, 0.01), [loss(one, inputs)], 1.0)
    training.update(training.adamw(two, 0.01), [loss(two, half) for half in inputs.chunk(2)], 1.0)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_loss_that_is_not_a_number_stops_with_a_remedy():
    model = a_model()
    with pytest.raises(UserError, match=r"loss is nan.*learning_rate"):
        training.update(training.adamw(model), [model(torch.full((1, 4), float("nan"))).sum()], 1.0)


@pytest.mark.parametrize(("warmup", "floor"), [(3, 0.05), (0, 0.0)])
def test_every_step_has_its_learning_rate_to_the_last_bit(tmp_path, monkeypatch, warmup, floor):
    """The weights behind published tables depend on these numbers, and a resumed run has the same."""

    def formula(step):
        if step < warmup:
            return 3e-3 * (step + 1) / warmup
        done = (step - warmup) / (20 - warmup)
        return 3e-3 * (floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2)

    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    used = []
    for stop in (7, 20):
        model = a_model()
        optimizer = training.adamw(model)
        inner = losses_of(model)

        def losses(step, stop=stop, inner=inner, optimizer=optimizer):
            if step == stop:
                raise KeyboardInterrupt
            yield from inner(step)
            used.append((step, optimizer.param_groups[0]["lr"]))

        schedule = training.Schedule(3e-3, 20, warmup=warmup, floor=floor)
        with contextlib.suppress(KeyboardInterrupt):
            training.fit(model, losses, schedule, optimizer=optimizer, checkpoint=tmp_path / "c.safetensors")
    assert used == [(step, formula(step)) for step in range(20)]


def test_distributions_that_many_variants_share_are_read_once_for_their_digest(monkeypatch):
    read = []
    digest = training.digest
    monkeypatch.setattr(training, "digest", lambda tensors: (read.append(len(tensors)), digest(tensors))[1])
    shared, other = torch.zeros(3, 2), torch.ones(3, 2)
    assert training.digest_of_recorded(shared, other) == training.digest_of_recorded(shared, other)
    assert read == [2]
    assert training.digest_of_recorded(shared, torch.zeros(3, 2)) != training.digest_of_recorded(shared, other)
