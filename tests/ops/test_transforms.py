"""torch.func and forward-mode autograd: the right derivative, or a refusal that names the backend that has one."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from longshort import HeadPlan, LSAttention, attention

PLAN = HeadPlan(windows=(None, 3, 3, 1), firsts=(0, 0, 1, 2), slopes=(0.1, 0, 0, 0.2))
# torch says that a mapped op runs once per entry, its forward mode warns of torch's own scripts, and its compiler warns
# of what it does itself where it gives up a frame.
pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated"),
]


def inputs():
    torch.manual_seed(0)
    return *(torch.randn(2, n, 7, 6) for n in (4, 2, 2)), torch.randn(4)


def op(backend, **options):
    return lambda q, k, v, sinks: attention(q, k, v, PLAN, sinks=sinks, backend=backend, **options).out


def loss(f):
    return lambda *args: f(*args).square().sum()


FIRST_DERIVATIVES = {
    "grad": lambda f: grad(loss(f), argnums=(0, 1, 2, 3))(*inputs()),
    "vjp": lambda f: vjp(f, *inputs())[1](inputs()[0]),
    "jacrev": lambda f: jacrev(f, argnums=(0, 3))(*inputs()),
    "vmap": lambda f: vmap(f, in_dims=(None, None, 0, None))(
        *inputs()[:2], torch.stack([inputs()[2]] * 3), inputs()[3]
    ),
    "grad of vmap": lambda f: grad(
        lambda q, *rest: loss(vmap(f, (0, None, None, None)))(torch.stack((q, 2 * q)), *rest)
    )(*inputs()),
}


@pytest.mark.parametrize("options", [{}, {"segments": torch.tensor([[0, 0, 0, 1, 1, 1, -1]] * 2), "softcap": 4.0}])
@pytest.mark.parametrize("transform", FIRST_DERIVATIVES.values(), ids=FIRST_DERIVATIVES)
def test_first_derivatives_are_those_of_the_reference(transform, options):
    found, expected = (transform(op(backend, **options)) for backend in ("blocked", "reference"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("positions", ["none", "rotary"])
def test_a_layer_gives_the_gradients_of_each_sequence_apart(positions):
    layer = LSAttention(24, PLAN, positions=positions, head_dim=6)
    weights, x = {name: weight.detach() for name, weight in layer.named_parameters()}, torch.randn(3, 7, 24)
    each = vmap(grad(lambda w, row: functional_call(layer, w, (row[None],)).square().sum()), (None, 0))(weights, x)
    for index, row in enumerate(x):
        alone = torch.autograd.grad(layer(row[None]).square().sum(), list(layer.parameters()))
        for name, expected in zip(weights, alone, strict=True):
            torch.testing.assert_close(each[name][index], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, q: jvp(f, (q,), (torch.ones_like(q),)),
        lambda f, q: jacfwd(f)(q),
        lambda f, q: hessian(lambda q: f(q).sum())(q),
        lambda f, q: grad(lambda q: grad(loss(f))(q).sum())(q),
    ],
    ids=["jvp", "jacfwd", "hessian", "grad of grad"],
)
def test_what_the_backend_lacks_is_refused_with_the_remedy(transform):
    q, k, v, _ = inputs()
    with pytest.raises(RuntimeError, match=r"attention has no [a-z -]+ in this backend; backend=.reference. has one"):
        transform(lambda q: attention(q, k, v, PLAN, backend="blocked").out, q)


@pytest.mark.parametrize("tracked", [False, True])
def test_dual_tensors_are_refused_and_others_served(tracked):
    q, k, v, _ = inputs()
    with forward_ad.dual_level():
        expected = attention(q, k, v, PLAN, backend="reference").out
        torch.testing.assert_close(attention(q, k, v, PLAN, backend="blocked").out, expected)
        dual = forward_ad.make_dual(q.requires_grad_(tracked), torch.ones_like(q))
        with pytest.raises(RuntimeError, match="attention has no forward-mode derivative in this backend"):
            attention(dual, k, v, PLAN, backend="blocked")


def test_a_compiled_map_is_that_of_the_reference():
    found = torch.compile(lambda: FIRST_DERIVATIVES["vmap"](op("blocked")), backend="eager")()
    torch.testing.assert_close(found, FIRST_DERIVATIVES["vmap"](op("reference")), rtol=1e-5, atol=1e-5)


def test_compiled_forward_mode_is_refused_too():
    q, k, v, _ = inputs()

    @torch.compile(backend="eager")
    def compiled(q):
        return attention(q, k, v, PLAN, backend="blocked").out

    plain = compiled(q)
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.compile(lambda q: jvp(compiled, (q,), (torch.ones_like(q),)), backend="eager")(q)
    with pytest.raises(RuntimeError, match="no forward-mode derivative"), forward_ad.dual_level():
        compiled(forward_ad.make_dual(q, torch.ones_like(q)))
    torch.testing.assert_close(compiled(q), plain)
