"""The table of `table.py` evaluated by torch operations, for devices without compiled kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from levytorch.law import contour
from levytorch.law.table import Table
from levytorch.law.table_grid import DEGREE, EMPTY, LOG_Z_SWITCH, N_NEAR, N_S, N_U, OUTSIDE, PER_Z, S_MIN, Z_SWITCH


def evaluate(table: Table, y: Tensor, A: Tensor, B: Tensor, order: int) -> Tensor:
    """Rows log p[, d/dy, d/dA, d/dB, 0]; y >= 0."""
    y, A, B = torch.broadcast_tensors(y, A, B)
    log_A = torch.log(A)
    position = torch.log(B) - table.alpha * log_A - S_MIN
    z = y / torch.sqrt(A)
    far = z >= Z_SWITCH
    u = torch.where(far, N_NEAR + torch.log(z.clamp_min(1.0)) - LOG_Z_SWITCH, z * PER_Z)
    inside = (A > 0) & (position >= 0) & (position < N_S) & (u < N_U)
    column = torch.where(inside, position, 0.0).long()
    base = torch.where(inside, u, 0.0).long()
    wanted = torch.unique(column[inside]).tolist()
    missing = [c for c in wanted if table.offset[c, 0] == EMPTY]
    if missing:
        table.build(missing)
    offset, level_u, level_s, coefficients = table.tensors(y.device)
    start = offset[column, base]
    inside = inside & (start > OUTSIDE) & (start >= 0)
    nu, ns = 2 ** level_u[column, base], 2 ** level_s[column, base]
    tu, ts = (u - base) * nu, (position - column) * ns
    iu, js = torch.minimum(tu.long(), nu - 1), torch.minimum(ts.long(), ns - 1)
    cell = torch.where(inside, start + iu * ns + js, 0)
    t, q = 2.0 * (tu - iu) - 1.0, 2.0 * (ts - js) - 1.0
    out = y.new_zeros((5 if order else 1, len(y)))
    index = inside.nonzero().squeeze(-1)
    if len(index):
        cells = coefficients.reshape(-1, DEGREE + 1, DEGREE + 1).transpose(1, 2)[cell[index]]
        parts = _horner(cells, t[index], q[index])
        out[:, index] = _rows(
            table, *parts, y[index], A[index], B[index], log_A[index], z[index], far[index], nu[index], ns[index], order
        )
    rest = (~inside).nonzero().squeeze(-1)
    if len(rest):
        alpha = torch.full((1,), table.alpha, dtype=torch.float64, device=y.device)
        out[:, rest] = contour.evaluate(y[rest], A[rest], B[rest], alpha, dim=table.dim, order=order)
    return out


def _horner(c: Tensor, t: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """F, F_t, F_q, F_tt."""
    f = ft = fq = ftt = torch.zeros_like(t)
    for i in range(DEGREE, -1, -1):
        g, gq = c[:, i, DEGREE], torch.zeros_like(t)
        for j in range(DEGREE - 1, -1, -1):
            g, gq = g * q + c[:, i, j], gq * q + g
        ftt, ft, f, fq = ftt * t + 2.0 * ft, ft * t + f, f * t + g, fq * t + gq
    return f, ft, fq, ftt


def _rows(table: Table, f, ft, fq, ftt, y, A, B, log_A, z, far, nu, ns, order) -> Tensor:
    half = 0.5 * table.dim
    log_p = f - half * log_A
    if order == 0:
        return log_p[None]
    fs, fu, fuu = fq * 2.0 * ns, ft * 2.0 * nu, ftt * 4.0 * nu * nu
    fz = fu * PER_Z
    safe = torch.where(far, y, 1.0)
    by_y = torch.where(far, fu / safe, fz / torch.sqrt(A))
    by_A = torch.where(
        far, (fuu + fu * (fu + table.dim - 2.0)) / (safe * safe), -(half + 0.5 * z * fz + table.alpha * fs) / A
    )
    return torch.stack([log_p, by_y, by_A, fs / B, torch.zeros_like(f)])
