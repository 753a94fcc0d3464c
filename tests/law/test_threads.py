"""Work that is spread over threads in each of which torch is alone."""

import pytest
import torch

from levytorch.law.threads import spread


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_and_torch_is_alone_in_each_thread(two_threads):
    assert spread(lambda i: (i, torch.get_num_threads()), range(5)) == [(i, 1) for i in range(5)]
    assert torch.get_num_threads() == 2
    # what is spread within such a thread stays in it
    assert spread(lambda i: spread(lambda j: 10 * i + j, range(2)), range(2)) == [[0, 1], [10, 11]]


@pytest.mark.parametrize("grad", [True, False])
def test_gradients_are_kept_or_not_as_where_it_was_asked(two_threads, grad):
    x = torch.ones(2, requires_grad=True)
    with torch.set_grad_enabled(grad):
        found = spread(lambda i: (i * x).sum(), range(4))
    assert [f.requires_grad for f in found] == [grad] * 4


def test_an_error_is_the_callers(two_threads):
    with pytest.raises(ZeroDivisionError):
        spread(lambda i: 1 // i, [1, 0, 2])
