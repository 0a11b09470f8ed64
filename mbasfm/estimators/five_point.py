"""Essential matrices of five matches, many samples at once.

Five matches leave a four-dimensional space of matrices; ten cubic equations pick the essential ones among them. They
are reduced to one polynomial of degree ten, as D. Nister does ("An efficient solution to the five-point relative pose
problem", PAMI 2004), here in homogeneous form, so that no root is at infinity. Its real roots are the zero crossings on
a grid, refined by Newton's method; cells within which the slope changes sign are split there, so that two roots within
one cell are found.
"""

import itertools

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

MAX_SOLUTIONS = 10
DEGREE = 10
GRID = 384
"""Number of grid cells on [-1, 1]."""
ROOT_STEPS = 9
POLISH_STEPS = 2
CHUNK = 4096
"""Number of samples solved at once; what they need stays in the cache."""
MIN_PIVOT = 1e-7
"""Smallest pivot relative to the largest; below it, five matches constrain no more than four."""
MAX_RESIDUAL = 1e-6
"""Largest residual of the cubic equations, for a matrix of unit norm."""

# Nister's order of monomials in (x, y, z, w) = (0, 1, 2, 3): the first ten are eliminated.
_MONOMIALS = (
    *((0, 0, 0), (1, 1, 1), (0, 0, 1), (0, 1, 1), (0, 0, 2), (0, 0, 3), (1, 1, 2), (1, 1, 3), (0, 1, 2), (0, 1, 3)),
    *((0, 2, 2), (0, 2, 3), (0, 3, 3), (1, 2, 2), (1, 2, 3), (1, 3, 3), (2, 2, 2), (2, 2, 3), (2, 3, 3), (3, 3, 3)),
)


def _gathering() -> Float[Tensor, "64 20"]:
    """Matrix that sums the coefficients of all orders of a product."""
    table = torch.zeros(64, 20, dtype=torch.float64)
    for row, factors in enumerate(itertools.product(range(4), repeat=3)):
        table[row, _MONOMIALS.index(tuple(sorted(factors)))] = 1
    return table


def _grid() -> tuple[Float[Tensor, " G"], Float[Tensor, "11 G"], Float[Tensor, "11 G"]]:
    """Positions from -1 to 1, their powers, and the derivatives of those."""
    place = torch.linspace(-1, 1, GRID + 1, dtype=torch.float64)
    power = torch.arange(DEGREE + 1)
    values = place ** power[:, None]
    slopes = power[:, None] * place ** (power[:, None] - 1).clamp_min(0)
    return place, values, slopes


def essential_matrices(
    rays_i: Float[Tensor, "B 5 3"], rays_j: Float[Tensor, "B 5 3"], polish_steps: int = POLISH_STEPS
) -> tuple[Float[Tensor, "B 10 3 3"], Bool[Tensor, "B 10"]]:
    """All real E of unit norm with ray_j^T E ray_i = 0 for five matches, and which of the ten places hold one.

    Samples that do not determine finitely many (repeated or collinear points) have none.
    """
    matrices = rays_i.new_zeros(len(rays_i), MAX_SOLUTIONS, 3, 3, dtype=torch.float64)
    valid = torch.zeros(len(rays_i), MAX_SOLUTIONS, dtype=torch.bool, device=rays_i.device)
    for start in range(0, len(rays_i), CHUNK):
        part = slice(start, start + CHUNK)
        sample, place, found = _solve(rays_i[part].double(), rays_j[part].double(), polish_steps)
        matrices[part][sample, place] = found
        valid[part][sample, place] = True
    return matrices, valid


def _solve(
    rays_i: Float[Tensor, "B 5 3"], rays_j: Float[Tensor, "B 5 3"], polish_steps: int
) -> tuple[Int[Tensor, " R"], Int[Tensor, " R"], Float[Tensor, "R 3 3"]]:
    """Sample that each solution belongs to, its number there, and the solution."""
    basis, determined = _null_space(rays_i, rays_j)
    reduced, info = torch.linalg.solve_ex(*_constraints(basis).split(10, dim=-1))
    rows = _eliminate_x_y(reduced.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
    sample, s, c = _roots(_determinant(rows))
    x_y = _kernel(_evaluate(rows[sample], s, c))
    mixture = torch.cat([x_y[:, :2], x_y[:, 2:] * torch.stack([s, c], -1)], -1)
    mixture, residual = _polish(basis[sample], normalize(mixture, dim=-1), polish_steps)
    good = (residual < MAX_RESIDUAL) & determined[sample] & (info[sample] == 0)
    sample, found = sample[good], (mixture[good][:, None] @ basis[sample[good]].flatten(2)).view(-1, 3, 3)
    place = _number_within(sample)
    return sample[place < MAX_SOLUTIONS], place[place < MAX_SOLUTIONS], found[place < MAX_SOLUTIONS]


def _number_within(group: Int[Tensor, " R"]) -> Int[Tensor, " R"]:
    """Position of each element within its run of equal numbers: 0, 1, 2 ..."""
    position = torch.arange(len(group), device=group.device)
    first = torch.ones_like(group, dtype=torch.bool)
    first[1:] = group[1:] != group[:-1]
    return position - torch.where(first, position, torch.zeros_like(position)).cummax(0).values


def _null_space(
    rays_i: Float[Tensor, "B 5 3"], rays_j: Float[Tensor, "B 5 3"]
) -> tuple[Float[Tensor, "B 4 3 3"], Bool[Tensor, " B"]]:
    """Four orthonormal matrices that span all E with ray_j^T E ray_i = 0, and whether there are no more."""
    products = normalize(rays_j, dim=-1)[..., :, None] * normalize(rays_i, dim=-1)[..., None, :]
    finite = products.isfinite().all(-1).all(-1).all(-1)
    columns = products.flatten(2).mT.where(finite[:, None, None], torch.ones_like(products.flatten(2).mT))
    q, r = torch.linalg.qr(columns, mode="complete")
    pivots = r.diagonal(dim1=-2, dim2=-1).abs()
    determined = finite & (pivots.amin(-1) > MIN_PIVOT * pivots.amax(-1))
    return q[..., 5:].mT.unflatten(-1, (3, 3)), determined


def _constraints(basis: Float[Tensor, "B 4 3 3"]) -> Float[Tensor, "B 10 20"]:
    """Coefficients of det E = 0 and 2 E E^T E = trace(E E^T) E, where E is a mixture of the basis."""
    gram = torch.einsum("bmij,bnkj->bmnik", basis, basis)
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    gram = 2 * gram - trace[..., None, None] * torch.eye(3, dtype=basis.dtype, device=basis.device)
    cubic = torch.einsum("bmnij,bojk->bikmno", gram, basis).flatten(3).flatten(1, 2)
    cross = torch.linalg.cross(basis[:, :, None, 1], basis[:, None, :, 2])
    determinant = torch.einsum("bmk,bnok->bmno", basis[:, :, 0], cross).flatten(1)
    return torch.cat([cubic, determinant[:, None]], 1) @ _GATHERING.to(basis.device)


def _eliminate_x_y(reduced: Float[Tensor, "B 10 10"]) -> Float[Tensor, "B 3 3 5"]:
    """Three equations x' p(z) + y' q(z) + r(z) = 0: coefficients of 1, z ... z^4 for x', y' and 1.

    The leading monomials of rows 4 and 5 are x^2 z and x^2, and so on: the difference of one and z times the other has
    none of degree two in x and y.
    """
    higher, lower = reduced[:, 4::2], reduced[:, 5::2]
    rows = reduced.new_zeros(len(reduced), 3, 3, 5)
    for column, (start, stop) in enumerate(((0, 3), (3, 6), (6, 10))):
        count = stop - start
        rows[:, :, column, :count] += higher[:, :, start:stop].flip(-1)
        rows[:, :, column, 1 : count + 1] -= lower[:, :, start:stop].flip(-1)
    return rows


def _times(p: Float[Tensor, "B m"], q: Float[Tensor, "B n"]) -> Float[Tensor, "B k"]:
    """Product of polynomials."""
    size = q.shape[-1]
    product = p.new_zeros(len(p), p.shape[-1] + size - 1)
    for power in range(p.shape[-1]):
        product[:, power : power + size] += p[:, power, None] * q
    return product


def _determinant(rows: Float[Tensor, "B 3 3 5"]) -> Float[Tensor, "B 11"]:
    """Determinant of the matrix of polynomials, scaled to a largest coefficient of one."""
    x, y, one = rows[:, :, 0, :4], rows[:, :, 1, :4], rows[:, :, 2]
    total = rows.new_zeros(len(rows), DEGREE + 1)
    for k, m, n in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        minor = _times(x[:, m], y[:, n]) - _times(x[:, n], y[:, m])
        total += _times(one[:, k], minor)
    return total / total.abs().amax(-1, keepdim=True).clamp_min(1e-300)


def _roots(polynomial: Float[Tensor, "B 11"]) -> tuple[Int[Tensor, " R"], Float[Tensor, " R"], Float[Tensor, " R"]]:
    """All real roots as s / c, and their polynomials, in order; large ones are inverses of the reversed one's roots."""
    both = torch.cat([polynomial, polynomial.flip(-1)])
    owner, root = _roots_within_one(both)
    is_inverse = owner >= len(polynomial)
    one = torch.ones_like(root)
    owner, order = torch.where(is_inverse, owner - len(polynomial), owner).sort(stable=True)
    s, c = torch.where(is_inverse, one, root), torch.where(is_inverse, root, one)
    length = torch.hypot(s, c)
    return owner, (s / length)[order], (c / length)[order]


def _roots_within_one(polynomial: Float[Tensor, "B 11"]) -> tuple[Int[Tensor, " R"], Float[Tensor, " R"]]:
    """Roots in [-1, 1], and the polynomial each belongs to."""
    place, values, slopes = (table.to(polynomial.device) for table in _GRID)
    above, rises = polynomial @ values > 0, polynomial @ slopes > 0
    crosses, turns = (at[:, 1:] != at[:, :-1] for at in (above, rises))
    owner, k = (crosses & ~turns).nonzero(as_tuple=True)
    ends = [(owner, place[k], place[k + 1])]
    owner, k = turns.nonzero(as_tuple=True)
    coefficients = polynomial[owner].T.contiguous()
    middle = _bracketed(_derivative(coefficients), place[k], place[k + 1])
    is_above = _horner(coefficients, middle) > 0
    left, right = above[owner, k] != is_above, above[owner, k + 1] != is_above
    ends += [(owner[left], place[k[left]], middle[left]), (owner[right], middle[right], place[k[right] + 1])]
    owner, low, high = (torch.cat(parts) for parts in zip(*ends, strict=True))
    return owner, _bracketed(polynomial[owner].T.contiguous(), low, high)


def _horner(coefficients: Float[Tensor, "k R"], place: Float[Tensor, " R"]) -> Float[Tensor, " R"]:
    """Values of polynomials; coefficients of 1, z, z^2 ... are rows, for contiguous memory."""
    value = coefficients[-1].clone()
    for row in coefficients[:-1].flip(0):
        value.mul_(place).add_(row)
    return value


def _derivative(coefficients: Float[Tensor, "k R"]) -> Float[Tensor, "l R"]:
    power = torch.arange(1, len(coefficients), dtype=coefficients.dtype, device=coefficients.device)
    return coefficients[1:] * power[:, None]


def _bracketed(
    coefficients: Float[Tensor, "k R"], low: Float[Tensor, " R"], high: Float[Tensor, " R"]
) -> Float[Tensor, " R"]:
    """Root between places at which signs differ: Newton's method, and halving where it would leave the bracket."""
    derivative = _derivative(coefficients)
    rising = _horner(coefficients, high) > 0
    place = (low + high) / 2
    for _ in range(ROOT_STEPS):
        value = _horner(coefficients, place)
        is_high = (value > 0) == rising
        high, low = torch.where(is_high, place, high), torch.where(is_high, low, place)
        newton = place - value / _horner(derivative, place)
        place = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
    return place


def _evaluate(rows: Float[Tensor, "R 3 3 5"], s: Float[Tensor, " R"], c: Float[Tensor, " R"]) -> Float[Tensor, "R 3 3"]:
    """The equations at z = s / c, times powers of c: degree three for x' and y', four for the rest."""
    powers_s, powers_c = (torch.stack([value**k for k in range(5)], -1) for value in (s, c))
    cubic, quartic = powers_s[:, :4] * powers_c[:, :4].flip(-1), powers_s * powers_c.flip(-1)
    x_y = (rows[:, :, :2, :4] * cubic[:, None, None]).sum(-1)
    return torch.cat([x_y, (rows[:, :, 2] * quartic[:, None]).sum(-1, keepdim=True)], -1)


def _kernel(matrix: Float[Tensor, "R 3 3"]) -> Float[Tensor, "R 3"]:
    """Vector perpendicular to all three rows, from the two that span most."""
    crosses = torch.linalg.cross(matrix[:, [0, 1, 2]], matrix[:, [1, 2, 0]])
    widest = crosses.square().sum(-1).argmax(-1)
    return crosses[torch.arange(len(matrix), device=matrix.device), widest]


def _polish(
    basis: Float[Tensor, "R 4 3 3"], mixture: Float[Tensor, "R 4"], steps: int
) -> tuple[Float[Tensor, "R 4"], Float[Tensor, " R"]]:
    """Mixtures after Gauss-Newton steps on the cubic equations, and the remaining residual."""
    eye = torch.eye(4, dtype=basis.dtype, device=basis.device)
    for _ in range(steps):
        essential = (mixture[:, None] @ basis.flatten(2)).view(-1, 3, 3)
        jacobian = _trace_slope(essential[:, None], basis).flatten(2)
        residual = _trace_constraint(essential).flatten(1)
        # The mixture's length is free; holding it makes the equations regular.
        normal = jacobian @ jacobian.mT + mixture[:, :, None] * mixture[:, None] + 1e-14 * eye
        step, _ = torch.linalg.solve_ex(normal, jacobian @ residual[..., None])
        mixture = normalize(mixture - step.squeeze(-1), dim=-1)
    essential = (mixture[:, None] @ basis.flatten(2)).view(-1, 3, 3)
    residual = _trace_constraint(essential).flatten(1).norm(dim=-1)
    return mixture, residual.nan_to_num(nan=torch.inf)


def _trace_constraint(essential: Float[Tensor, "*B 3 3"]) -> Float[Tensor, "*B 3 3"]:
    """2 E E^T E - trace(E E^T) E, which vanishes for essential matrices only."""
    gram = essential @ essential.mT
    return 2 * gram @ essential - gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] * essential


def _trace_slope(essential: Float[Tensor, "R 1 3 3"], change: Float[Tensor, "R 4 3 3"]) -> Float[Tensor, "R 4 3 3"]:
    """Derivative of the trace constraint in the direction of a change."""
    gram = essential @ essential.mT
    mixed = change @ essential.mT
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    inner = mixed.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return 2 * ((mixed + mixed.mT) @ essential + gram @ change) - 2 * inner * essential - trace * change


_GATHERING = _gathering()
_GRID = _grid()
