"""The first weights of a sharded model; that they are those of a whole one is in `checks`."""

import pytest
import torch
from torch import nn

from longshort.parallel.drawing import _Rows


def test_what_draws_rows_refuses_initialisation_that_depends_on_what_a_parameter_held():
    with torch.device("meta"), torch.no_grad(), _Rows(1, 2) as drawn:
        parameter = nn.Parameter(torch.empty(3, 2))
        nn.init.constant_(parameter, 7.0)
        with pytest.raises(NotImplementedError, match=r"a parameter must be initialised by .*, got aten.mul_"):
            parameter.mul_(2)
    assert drawn.rows[parameter].tolist() == [[7.0, 7.0]]
