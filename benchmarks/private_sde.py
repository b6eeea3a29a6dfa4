"""What does a statement about the training set cost, and does the differential equation pay for any
of it?

    nice -n 19 python benchmarks/private_sde.py [--classes] [--images FILE --limit N]

Half of the images train the public network, with --classes those of the first five classes; of the
others come the private records: eight models, each on a half of them drawn by coins. At equal
epsilon for one record added or removed: `training.train_private`; the Gaussian mechanism on the
same clipped states without the equation; gradient descent with clipped and noised sums (DP-SGD with
all records in each batch) of the head on the same states, without noise in them. All heads are
linear. Below: what canaries find in the stored states, and two errors planted there. Digits by
default; of other images the public network is a fast one. --sweep chooses the labels' share of
epsilon and the rate of the sums on public images alone.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import head, mean_interval, options, report, row

from mia_nb import accounting, attacks, auditing, data, metrics, training
from mia_nb.auditing.one_run import one_run
from mia_nb.models.bottleneck import Bottleneck
from mia_nb.training import private_sde
from mia_nb.types import Images, Recipe, Signals

DELTA = 1e-5
EPSILONS = (1, 2, 4, 8)
SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)
STEPS = 50  # of the head's gradient descent
RATE = 5.0
RATES = (0.5, 2.0, 5.0, 20.0)
REDRAWN = 300  # epochs with noise of their own
CLIMBS = 100  # steps to an image with a large state
SMALL = {"base_args": {"width": 16}, "channels": 16, "steps": 4, "k": 0.1}
FAST = {"base": "fast", "base_args": {"width": 32}, "channels": 16, "steps": 4, "k": 0.1}
TRAINED = {  # how the public network of colour images is trained
    "epochs": 4,
    "batch": 125,
    "augment": "translate+alternate",
    "dtype": "bfloat16",
}
CANARY_EPOCHS = 1  # of its public networks, which only have to be certified
PUBLIC_CLASSES = 5  # with --classes; the other classes hold the records


def by_class(images: Images) -> tuple[Images, Images]:
    """(public, private) images of the first classes and of the others, normalised by the public
    ones.
    """
    low = images.y.numpy() < PUBLIC_CLASSES
    order = np.random.default_rng(0).permutation(len(low))
    first, second = order[low[order]], order[~low[order]]
    names = images.classes[:PUBLIC_CLASSES], images.classes[PUBLIC_CLASSES:]
    name = images.name
    public = data.from_arrays(
        images.x[first], images.y[first], name=f"{name}-low", classes=names[0]
    )
    about = {"mean": public.mean, "std": public.std, "name": f"{name}-high", "classes": names[1]}
    labels = images.y[second] - PUBLIC_CLASSES
    return public, data.from_arrays(images.x[second], labels, **about)


def halves(images: Images) -> tuple[Images, Images]:
    """(public, private) images: two random halves, normalised by the public ones."""
    first = np.random.default_rng(0).permutation(len(images.y)) < len(images.y) // 2
    x, y, classes = images.x.numpy(), images.y.numpy(), images.classes
    public = data.from_arrays(x[first], y[first], name=f"{images.name}-public", classes=classes)
    about = {"mean": public.mean, "std": public.std, "classes": classes}
    private = data.from_arrays(x[~first], y[~first], name=f"{images.name}-private", **about)
    return public, private


@torch.no_grad()
def passed(network: Bottleneck, images: Images) -> tuple[torch.Tensor, torch.Tensor]:
    """States (N, channels) that enter the block, in a ball of radius 1, and that leave it without
    noise.
    """
    embedded = private_sde._embedded(network, images)
    before = network.flow.entering(embedded).flatten(1) / network.flow.clip
    return before, network.flow(embedded).flatten(1)


# --------------------------------------------------------------------------------------------------
# heads at equal epsilon


def on_gaussian(
    h: torch.Tensor, y: np.ndarray, classes: int, slots: int, mu: float, keep: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Head on states with Gaussian noise in place of the equation, and on randomised labels; empty
    slots as there. States lie in a ball of radius 1.
    """
    coins = np.random.default_rng([seed, 1])
    empty = slots - len(h)
    states = np.concatenate([h.numpy(), np.zeros((empty, h.shape[1]))])
    states = states + coins.normal(0, 1 / mu, states.shape)
    labels = private_sde.randomised(y, classes, keep, coins)
    labels = np.concatenate([labels, coins.integers(classes, size=empty)])
    return private_sde.fitted_head(states[None], labels, classes)


def by_noisy_sums(
    h: torch.Tensor,
    y: np.ndarray,
    classes: int,
    slots: int,
    mu: float,
    seed: int,
    rate: float = RATE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Head by gradient descent on sums of clipped gradients with noise: `STEPS` Gaussian releases,
    together of this mu.
    """
    generator = torch.Generator().manual_seed(private_sde.mix(seed, "sums"))
    x = torch.cat([h, torch.ones(len(h), 1)], 1).double()
    target = torch.nn.functional.one_hot(torch.tensor(y), classes).double()
    weight = torch.zeros(classes, x.shape[1], dtype=torch.float64)
    for _ in range(STEPS):
        error = (x @ weight.T).softmax(1) - target
        norm = error.norm(dim=1) * x.norm(dim=1)  # of a record's gradient
        total = (error / norm.clamp(min=1)[:, None]).T @ x
        noise = torch.randn(total.shape, generator=generator, dtype=torch.float64)
        total += noise * math.sqrt(STEPS) / mu
        weight -= rate / slots * 2 * total
    return weight[:, :-1].float(), weight[:, -1].float()


def logits_of(heads: list, h: torch.Tensor) -> np.ndarray:
    """(M, N, K) of linear heads on states."""
    return np.stack([(h @ weight.T + bias).numpy() for weight, bias in heads])


def judged(logits: np.ndarray, images: Images, member: np.ndarray) -> list[str]:
    """Accuracy on images that a model did not train on; AUC of two attacks; the audit by coins."""
    signals = Signals.from_logits(logits, images.y.numpy(), member)
    correct = signals.correct[:, 0]
    accuracy = [hits[~inside].mean() for hits, inside in zip(correct, member, strict=True)]
    scores = {name: attacks.score(name, signals) for name in ("rmia", "lira_global")}
    table = metrics.summary(scores, n_resamples=200).set_index("attack")
    areas = table[table["metric"] == "auc"].loc[[*scores]]
    found = max(
        (
            auditing.audit(auditing.score_split(name, signals), delta=DELTA, attempts=2)
            for name in scores
        ),
        key=lambda audit: audit.epsilon,
    )
    cells = [f"{a.value:.3f} [{a.low:.3f}, {a.high:.3f}]" for a in areas.itertuples()]
    audit = f"{found.epsilon:.2f} (at most {found.at_most:.2f}, m = {found.canaries:,})"
    return [mean_interval(accuracy), *cells, audit]


def compare(
    recipe: Recipe, public: Images, private: Images, root: Path, epsilons: tuple[int, ...]
) -> None:
    """The three ways at each epsilon, and at last the head without any noise."""
    network = private_sde._backbone(recipe, public, root, progress=False).model(0)
    states = passed(network, private)
    if private.classes == public.classes:
        with torch.no_grad():
            right = network.head(states[1]).argmax(1) == private.y
        print(f"the public head on private images: {100 * right.double().mean():.2f} %\n")
    head(["epsilon", "way", "accuracy", "AUC, RMIA", "AUC, LiRA", "audited by coins"])
    claims = []
    for epsilon in epsilons:
        last = epsilon == epsilons[-1]
        claims.append(print_rows(epsilon, last, recipe, public, private, root, states))
    print("\n" + "\n".join(claims) + "\n", flush=True)


def print_rows(
    epsilon: float,
    last: bool,
    recipe: Recipe,
    public: Images,
    private: Images,
    root: Path,
    states: tuple,
) -> str:
    """A row a way, after the last epsilon one without noise; a line about the claims of the
    first.
    """
    pool = training.train_private(
        recipe, private, public, epsilon=epsilon, root=root, progress=False
    )
    proof = training.proved(pool, delta=DELTA)
    network = pool.model(0)
    before, after = states
    y = private.y.numpy()
    classes = len(private.classes)
    own = []
    gaussian = []
    sums = []
    plain = []
    whole = float(accounting.gaussian_mu(epsilon, DELTA))
    for m, inside in enumerate(pool.member):
        state = pool.state(m)
        own.append((state["head.weight"], state["head.bias"]))
        members = (before[inside], y[inside], classes)
        gaussian.append(on_gaussian(*members, proof.slots, proof.mu, proof.keep, m))
        sums.append(by_noisy_sums(*members, proof.slots, whole, m))
        if last:
            plain.append(private_sde.fitted_head(before[inside].numpy()[None], y[inside], classes))
    theorem = accounting.theorem_epsilon(
        noise_sd=network.flow.noise_sd / network.flow.clip,
        T=network.flow.solver["T"],
        lipschitz=proof.lipschitz,
        delta=DELTA,
    )
    ways = {
        "stored states of the SDE": (own, after),
        "Gaussian on the same states": (gaussian, before),
        "noisy sums of gradients": (sums, before),
        "no noise": (plain, before),
    }
    for name, (heads, states) in ways.items():
        if heads:
            shown = "none (infinite)" if name == "no noise" else epsilon
            row([shown, name, *judged(logits_of(heads, states), private, pool.member)])
    replaced = training.proved(pool, delta=DELTA, relation="replace").epsilon
    return (
        f"* epsilon {epsilon}: proved {proof.epsilon:.4g} (added, removed), {replaced:.4g}"
        f" (replaced); Theorem 1 with the certified {proof.lipschitz:.3g} says {theorem:.3g}; mu"
        f" {proof.mu:.3f}, true labels {proof.keep:.3f}"
    )


# --------------------------------------------------------------------------------------------------
# canaries


def largest_state(network: Bottleneck, like: Images) -> torch.Tensor:
    """An image (1, C, H, W) whose state is as large as climbing makes it."""
    generator = torch.Generator().manual_seed(0)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (like.mean, like.std))
    x = torch.rand(64, *like.x.shape[1:], generator=generator, requires_grad=True)
    for _ in range(CLIMBS):
        norms = network.embed((x - mean) / std).flatten(1).norm(dim=1)
        (slope,) = torch.autograd.grad(norms.sum(), x)
        x = (x + 0.03 * slope.sign()).clamp(0, 1).detach().requires_grad_()
    best = norms.argmax()
    return (x[best : best + 1].detach() * 255).round().to(torch.uint8)


def audited(pool: training.pool.Pool, canary: torch.Tensor) -> tuple[str, float]:
    """What the stored states and labels tell of the coin that put a canary into each model: the
    largest log-likelihood ratio of a slot, against an empty one, noise taken as Gaussian.
    """
    network = pool.model(0)
    images = pool.images()
    with torch.no_grad():
        x = data.normalise(canary, images.mean, images.std, torch.float32)
        embedded = network.embed(x)
        filled, empty = network.flow(torch.cat([embedded, 0 * embedded])).flatten(1).numpy()
    classes = len(images.classes)
    keep = pool.recipe.defense_args["keep"]
    scores = []
    for m in range(len(pool.member)):
        kept = pool.folder.read_arrays(private_sde.stored_name(m))
        gain = (kept["states"] - empty) ** 2 - (kept["states"] - filled) ** 2
        of_state = gain.sum((0, 2)) / (2 * network.flow.noise_sd**2)
        truth = kept["labels"] == 1
        of_label = np.log(classes * np.where(truth, keep, (1 - keep) / (classes - 1)))
        scores.append(np.logaddexp.reduce(of_state + of_label))
    found = one_run(np.array(scores), pool.member[:, 1], delta=DELTA)
    text = f"{found.epsilon:.2f} (at most {found.at_most:.2f}; {found.correct} of {found.guesses}"
    return f"{text} guesses right, {found.canaries} coins)", found.epsilon


def canaries(
    recipe: Recipe,
    public: Images,
    private: Images,
    root: Path,
    models: int,
    epsilons: tuple[int, ...],
    redrawn: int,
) -> None:
    """One record that all models have and one canary, in by a coin: the audits of what is stored,
    and two planted errors at epsilon 2, of which one draws noise in so many epochs.
    """
    recipe = recipe.replace(model_args={**recipe.model_args, "clip": 0.1})
    network = private_sde._backbone(recipe, public, root, progress=False).model(0)
    canary = largest_state(network, public)
    x = torch.cat([private.x[:1], canary, private.x[1:2]])
    about = {"mean": public.mean, "std": public.std, "classes": public.classes}
    few = data.from_arrays(x, [0, 1, 2], name="canary", **about)
    member = np.zeros((models, 3), bool)
    member[:, 0] = True
    member[:, 1] = np.random.default_rng(5).integers(0, 2, models)
    recipe = recipe.replace(num_models=models, split="given")
    train = partial(
        training.train_private,
        images=few,
        public=public,
        member=member,
        slots=2,
        root=root,
        progress=False,
    )
    head(["claimed", "planted error", "proved", "audited by a canary in the stored states"])
    for epsilon in epsilons:
        pool = train(recipe, epsilon=epsilon)
        proof = training.proved(pool, delta=DELTA)
        row([epsilon, "none", f"{proof.epsilon:.4g}", audited(pool, canary)[0]])
        if epsilon == 2:
            sound = pool
    same = {"defense": "stored", "defense_args": sound.recipe.defense_args}
    loud = {"epsilon": None, "noise": sound.recipe.model_args["k"]}
    pool = train(recipe.replace(**same), releases=redrawn, **loud)
    proof = training.proved(pool, delta=DELTA)
    error = f"noise drawn anew in {redrawn} epochs"
    row([2, error, f"{proof.epsilon:.4g}", audited(pool, canary)[0]])
    broken = {**recipe.model_args, "clip": None}
    pool = train(recipe.replace(**same, model_args=broken), **loud)
    row([2, "clipping off", training.proved(pool).line, audited(pool, canary)[0]])
    print(flush=True)


# --------------------------------------------------------------------------------------------------
# the labels' share


def sweep(recipe: Recipe, public: Images, root: Path) -> None:
    """Accuracy on public images, half of which are taken for private, by the labels' share."""
    network = private_sde._backbone(recipe, public, root, progress=False).model(0)
    h, _ = passed(network, public)
    y = public.y.numpy()
    classes = len(public.classes)
    columns = [f"epsilon {epsilon}" for epsilon in EPSILONS]
    head(["rate of the sums", *columns])
    for rate in RATES:
        cells = []
        for epsilon in EPSILONS:
            mu = float(accounting.gaussian_mu(epsilon, DELTA))
            right = []
            for seed in range(recipe.num_models):
                inside = np.random.default_rng(seed).integers(0, 2, len(y)).astype(bool)
                args = (h[inside], y[inside], classes, int(inside.sum()), mu, seed, rate)
                logits = logits_of([by_noisy_sums(*args)], h[~inside])[0]
                right.append((logits.argmax(1) == y[~inside]).mean())
            cells.append(mean_interval(right))
        row([rate, *cells])
    print(flush=True)
    head(["labels' share", *columns])
    for share in SHARES:
        cells = []
        for epsilon in EPSILONS:
            keep = private_sde._keep_probability(share * epsilon, classes)
            goal = {"epsilon": epsilon, "delta": DELTA, "relation": "add/remove"}
            mu = accounting.stored_mu(**goal, keep=keep, classes=classes)
            right = []
            for seed in range(recipe.num_models):
                inside = np.random.default_rng(seed).integers(0, 2, len(y)).astype(bool)
                slots = int(inside.sum())
                args = (h[inside], y[inside], classes, slots, mu, keep, seed)
                logits = logits_of([on_gaussian(*args)], h[~inside])[0]
                right.append((logits.argmax(1) == y[~inside]).mean())
            cells.append(mean_interval(right))
        row([share, *cells])
    print(flush=True)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--images", default="digits", help="or an .npz of colour images")
    parser.add_argument("--limit", type=int, help="so many images")
    parser.add_argument("--root", type=Path, help="where pools are kept")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--classes", action="store_true", help="half of the classes are public")
    parser.add_argument("--only", choices=("heads", "canaries"))
    parser.add_argument("--models", type=int, default=200, help="of a canary's audit")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*equal another.*")
    with tempfile.TemporaryDirectory() as folder, report("Stored states", args.quick):
        root = args.root or Path(folder)
        limit = args.limit or (500 if args.quick else None)
        images = data.load(args.images, limit=limit)
        public, private = by_class(images) if args.classes else halves(images)
        network = (
            {"model_args": FAST, **TRAINED} if args.images != "digits" else {"model_args": SMALL}
        )
        recipe = Recipe(model="bottleneck", num_models=8, split="bernoulli", **network)
        models = args.models
        if args.quick:
            recipe = recipe.replace(epochs=2)  # eight models, fewer leave no spread to an attack
            models = 10
        epsilons = (2,) if args.quick else EPSILONS
        print(f"{public!r}; {private!r}\n")
        if args.sweep:
            sweep(recipe, public, root)
            return
        if args.only != "canaries":
            compare(recipe, public, private, root, epsilons)
        if args.only != "heads":
            few = recipe if args.images == "digits" else recipe.replace(epochs=CANARY_EPOCHS)
            redrawn = 5 if args.quick else REDRAWN
            canaries(few, public, private, root, models, epsilons, redrawn)


if __name__ == "__main__":
    main()
