"""A toy pair with its recorded answers, and what tests of training compare."""

import pytest
import torch

from tests.pair import make_results


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    make_results(folder)
    return folder


def alpha(rows):
    return rows["overlap"].sum() / rows["visited"].sum()


def weights(model):
    return torch.cat([value.detach().flatten() for _, value in model.named_parameters()])
