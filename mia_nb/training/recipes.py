"""Named recipes, and labels for results: what a model leaks depends on how long it was trained."""

from __future__ import annotations

from mia_nb.arguments import Anything
from mia_nb.checks import checked, hint
from mia_nb.training.placing import complete
from mia_nb.types import Recipe

RECIPES = {  # changes to a Recipe
    # One cycle of the learning rate (Smith and Topin, arXiv 1708.07120) in few epochs, as in public
    # speed-run code, but without those of its tricks that change memorisation. It takes minutes
    # where the papers take hours; its risk is lower than theirs, a lower end.
    "fast": {"schedule": "one_cycle", "epochs": 16},
    # The same with time to memorise, about as long as common public training loops for membership
    # inference.
    "long": {"schedule": "one_cycle", "epochs": 100},
    # Guan, Sharma, Tian and Lahlou (UAI 2025); notebooks/presets/paper-snn.yaml says which settings
    # are theirs and which are assumed.
    "paper-snn": {
        "epochs": 200,
        "batch": 256,
        "lr": 0.1,
        "optimizer": "sgd",
        "optimizer_args": {"momentum": 0.1, "nesterov": False, "weight_decay": 0.0005},
        "schedule": "cosine",
        "augment": "crop+flip",
        "dtype": "float32",
    },
    # Hong, Wu, Gruber and Lee (arXiv 2501.06686), as in notebooks/presets/paper-nsde.yaml; this is
    # for their differential equations, while their ResNets have lr 0.1.
    "paper-nsde": {
        "epochs": 300,
        "batch": 512,
        "lr": 0.05,
        "optimizer": "sgd",
        "optimizer_args": {"nesterov": False},
        "schedule": "plateau",
        "augment": "crop+flip",
        "dtype": "float32",
    },
}
SCHEDULE_WORDS = {"one_cycle": "one-cycle", "constant": "constant learning rate"}
# fields that a label names unless they are a Recipe's default, and in which words
UNUSUAL = {"lr": "lr {:g}", "batch": "batch {}", "loss": "{}", "dtype": "{}"}


@checked
def changes(family: Anything) -> dict:
    """The fields of a Recipe that a named recipe changes.

    Parameters:
        family: "fast" (one cycle, 16 epochs), "long" (100 epochs), "paper-snn" or "paper-nsde" (the
            recipes of the two studies); or a mapping of changes, maybe to a named recipe:
            {"recipe": "fast", "augment": "none"} is the fast recipe without augmentation.

    Returns:
        {field: value}, for `Recipe(**...)` or as a family of `family_pools`.

    Raises:
        ValueError: no recipe has this name.

    Example:
        >>> changes({"recipe": "fast", "augment": "none"})
        {'schedule': 'one_cycle', 'epochs': 16, 'augment': 'none'}
    """
    if isinstance(family, str):
        if family not in RECIPES:
            raise ValueError(
                f"unknown recipe {family!r}{hint(family, RECIPES)}; named ones are"
                f" {', '.join(RECIPES)}; else pass {{epochs: 40}}"
            )
        return dict(RECIPES[family])
    if not isinstance(family, dict):
        raise ValueError(
            f"recipe {family!r}: wanted a name ({', '.join(RECIPES)}) or a mapping of changes, e.g."
            " {epochs: 40}"
        )
    named = changes(family["recipe"]) if "recipe" in family else {}
    rest = {name: value for name, value in family.items() if name != "recipe"}
    return named | rest


@checked
def label(recipe: Recipe) -> str:
    """The label of a result, since what a model leaks depends on how long it was trained.

    Parameters:
        recipe: of the models. The label always names schedule, epochs and augmentation. Of the
            other fields that change memorisation (optimiser, learning rate, batch, loss, dtype,
            defense, a parent) it names those that are not a Recipe's default. It begins with the
            name of a named recipe if all entries of that recipe agree.

    Returns:
        One line.

    Raises:
        ValueError: the recipe names an unknown optimiser, loss or defense.

    Example:
        >>> label(Recipe(epochs=16))
        'fast: one-cycle, 16 epochs, no augmentation'
    """
    return _labelled(recipe, _unusual_facts(recipe))


@checked
def labels(recipes: list[Recipe]) -> list[str]:
    """The labels of several recipes, for results side by side.

    Parameters:
        recipes: facts that all share are left out, except schedule, epochs and augmentation.

    Returns:
        One line each, in order. Equal labels (of other models, say) are told apart by
        "(recipe 1)", their place in the list from 0.

    Raises:
        ValueError: as `label`.
    """
    if not recipes:
        return []
    facts_of_recipes = [_unusual_facts(recipe) for recipe in recipes]
    shared = set.intersection(*map(set, facts_of_recipes))
    texts = []
    for recipe, facts in zip(recipes, facts_of_recipes, strict=True):
        texts.append(_labelled(recipe, [fact for fact in facts if fact not in shared]))
    numbered = []
    for number, text in enumerate(texts):
        is_unique = texts.count(text) == 1
        numbered.append(text if is_unique else f"{text} (recipe {number})")
    return numbered


def _labelled(recipe: Recipe, facts: list[str]) -> str:
    """The label: the recipe's name, schedule, epochs, augmentation, and these further facts."""
    recipe = complete(recipe)
    name = ""
    for known, entries in RECIPES.items():
        if complete(recipe.replace(**entries)) == recipe:
            name = f"{known}: "
            break
    if recipe.epochs == 0:
        return name + ", ".join(["not trained further", *facts])
    schedule = SCHEDULE_WORDS.get(recipe.schedule, recipe.schedule)
    length = "1 epoch" if recipe.epochs == 1 else f"{recipe.epochs} epochs"
    augment = "no augmentation" if recipe.augment == "none" else recipe.augment
    return name + ", ".join([schedule, length, augment, *facts])


def _unusual_facts(recipe: Recipe) -> list[str]:
    """The fields that are not a Recipe's default, in words, without schedule, epochs and
    augmentation.
    """
    recipe = complete(recipe)
    usual = complete(Recipe(optimizer=recipe.optimizer))
    facts = []
    if recipe.optimizer != Recipe.model_fields["optimizer"].default:
        facts.append(recipe.optimizer)
    for name, value in recipe.optimizer_args.items():
        if value == usual.optimizer_args.get(name):
            continue
        if isinstance(value, bool):
            facts.append(name if value else f"no {name}")
        else:
            facts.append(f"{name.replace('_', ' ')} {value:g}")
    for name, text in UNUSUAL.items():
        value = getattr(recipe, name)
        if value != getattr(usual, name):
            facts.append(text.format(value))
    if recipe.defense:
        args = [f"{name} {value}" for name, value in recipe.defense_args.items()]
        facts.append(", ".join([recipe.defense, *args]))
    if recipe.parent:
        facts.append(f"from {recipe.parent[:12]}")
    return facts
