"""The cells of LSTM and GRU: on a GPU each is one kernel, and on the CPU torch has no kernel of that name."""

import torch
from torch import Tensor

Gates = tuple[Tensor, Tensor, Tensor, Tensor]


def lstm_cell(
    igates: Tensor, hgates: Tensor, cx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the new hidden state, the new cell state, and what the backward pass needs."""
    gates = igates + hgates
    if input_bias is not None:
        gates = gates + input_bias + hidden_bias
    enter, forget, new, leave = gates.chunk(4, 1)
    enter, forget, new, leave = enter.sigmoid(), forget.sigmoid(), new.tanh(), leave.sigmoid()
    cy = forget * cx + enter * new
    return leave * cy.tanh(), cy, torch.cat([enter, forget, new, leave], 1)


def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns the gradients of the gates, of the cell state and of the biases."""
    enter, forget, new, leave = workspace.chunk(4, 1)
    tanh = cy.tanh()
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    grad_cell = grad_hy * leave * (1 - tanh * tanh)
    if grad_cy is not None:
        grad_cell = grad_cell + grad_cy
    gates = torch.cat(
        [
            grad_cell * new * enter * (1 - enter),
            grad_cell * cx * forget * (1 - forget),
            grad_cell * enter * (1 - new * new),
            grad_hy * tanh * leave * (1 - leave),
        ],
        1,
    )
    return gates, grad_cell * forget, gates.sum(0) if has_bias else None


def gru_cell(
    igates: Tensor, hgates: Tensor, hx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the new hidden state, and what the backward pass needs."""
    if input_bias is not None:
        igates, hgates = igates + input_bias, hgates + hidden_bias
    (reset_i, update_i, new_i), (reset_h, update_h, new_h) = igates.chunk(3, 1), hgates.chunk(3, 1)
    reset, update = (reset_i + reset_h).sigmoid(), (update_i + update_h).sigmoid()
    new = (new_i + reset * new_h).tanh()
    return new + update * (hx - new), torch.cat([reset, update, new, hx, new_h], 1)


def gru_cell_backward(
    grad: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Returns the gradients of both kinds of gates, of the hidden state and of the biases."""
    reset, update, new, hx, new_h = workspace.chunk(5, 1)
    to_new = grad * (1 - update) * (1 - new * new)
    to_update = grad * (hx - new) * update * (1 - update)
    to_reset = to_new * new_h * reset * (1 - reset)
    igates = torch.cat([to_reset, to_update, to_new], 1)
    hgates = torch.cat([to_reset, to_update, to_new * reset], 1)
    biases = (igates.sum(0), hgates.sum(0)) if has_bias else (None, None)
    return igates, hgates, grad * update, *biases


_library = torch.library.Library("aten", "IMPL")


def register() -> None:
    _library.impl("_thnn_fused_lstm_cell", lstm_cell, "CUDA")
    _library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward, "CUDA")
    _library.impl("_thnn_fused_gru_cell", gru_cell, "CUDA")
    _library.impl("_thnn_fused_gru_cell_backward", gru_cell_backward, "CUDA")
