from unittest import mock

import pytest
import torch
import torch.distributed as dist

from mypackage.reducer import Reducer


def fake_all_reduce(tensor, op=None, group=None, async_op=False):
    tensor.mul_(2)


@pytest.fixture
def two_ranks(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    monkeypatch.setattr(dist, "all_reduce", fake_all_reduce)
    monkeypatch.setattr("torch.distributed.all_gather", lambda out, x: None)


def test_sum(two_ranks):
    x = torch.ones(3)
    Reducer()(x)
    assert torch.equal(x, torch.full((3,), 2.0))


@mock.patch("torch.distributed.broadcast")
def test_broadcast_once(broadcast):
    Reducer().start(torch.ones(3))
    broadcast.assert_called_once()


def test_no_reduce_for_one_rank():
    with mock.patch.object(dist, "all_reduce") as reduce, mock.patch.object(dist, "get_world_size", return_value=1):
        Reducer()(torch.ones(3))
    reduce.assert_not_called()


def test_scatter_order():
    comm = mock.MagicMock()
    comm.Get_rank.return_value = 0
    comm.Allreduce.side_effect = lambda a, b: b.copy_(a)
    comm.Allreduce(torch.ones(1), torch.zeros(1))
    assert comm.Allreduce.call_count == 1
