"""Records of named options: the recipe of a pool, and a query."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from mia_nb.checks import hint, instance, plain, shown

SPLITS = ("pairs", "bernoulli", "given")
SCHEDULES = ("one_cycle", "cosine", "linear", "plateau", "constant")
DTYPES = ("float32", "float64", "bfloat16")
AUGMENTATIONS = ("crop", "flip", "cutout", "translate", "alternate", "autoaugment")


def _whole_float_as_int(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole_float_as_int)]


class Record(BaseModel):
    """Named options, frozen, each with its type, range and description, to and from JSON.

    Whole floats and NumPy's numbers become Python's. Raises ValueError of one line: which field,
    what came, what was wanted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    def __init__(self, **values):
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(_refusal(type(self), first, values)) from None

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """List the fields in the docstring, so that `help` shows what each takes."""
        lines = [
            f"        {name}: {field.description} (default: {field.default!r})."
            for name, field in cls.model_fields.items()
        ]
        summary = (cls.__doc__ or "").rstrip()
        cls.__doc__ = "\n".join([summary, "", "    Parameters:", *lines, ""])

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value):
        return plain(value)

    def keys(self):
        """Names of the fields; with `keys` and [], `**record` passes on all fields."""
        return type(self).model_fields.keys()

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def replace(self, **changes) -> Self:
        """The record with some fields changed; ValueError as for a new one."""
        return type(self)(**{**self, **changes})

    def to_json(self) -> dict:
        return self.model_dump()

    @classmethod
    def from_json(cls, record: dict) -> Self:
        return cls(**instance(cls.__name__.lower(), record, dict))


def _refusal(kind: type[Record], error: dict, values: dict) -> str:
    """A pydantic error as one line: which field, what came, what was wanted."""
    if not error["loc"]:  # it concerns several fields
        return str(error["ctx"]["error"])
    name = str(error["loc"][0])
    fields = kind.model_fields
    if name not in fields:
        close = hint(name, fields)
        if f"num_{name}" in fields:  # models, as other calls name their number
            close = f"; did you mean 'num_{name}'?"
        return f"a {kind.__name__.lower()} has no {name!r}{close}; it has {', '.join(fields)}"
    came = f"{name}={shown(values[name])}: "
    wanted = f"wanted {fields[name].description}"
    if error["type"] == "value_error":
        return f"{came}{error['ctx']['error']}; {wanted}"
    if error["type"] in ("literal_error", "string_pattern_mismatch"):
        known = {word.strip(",:") for word in fields[name].description.split()}
        for word in str(values[name]).split("+"):
            if word not in known:
                wanted += hint(word, known)
    return came + wanted


class Recipe(Record):
    """Everything that determines a pool's models, to and from JSON. Networks, optimisers, losses
    and defenses are given by name.

    A frozen pydantic model; each field has a type, range and description
    (`Recipe.model_json_schema()`). `snapshots` change no weight, but another list makes another
    pool, which is trained anew; epochs from the last one on are dropped. Whole floats and NumPy's
    numbers become Python's. Names are checked when training begins. Raises ValueError of one line:
    which field, what came, what was wanted.
    """

    model: str = Field(
        "tinycnn",
        min_length=1,
        description="the name of a network (a key of models.MODELS), or package.module:function",
    )
    model_args: dict[str, Any] = Field(
        {}, description="a mapping of keyword arguments of the network"
    )
    num_models: Whole = Field(
        16,
        ge=1,
        le=100_000,
        description="a number of models from 1 to 100000, even where they are trained in pairs",
    )
    split: Literal[SPLITS] = Field(
        "pairs",
        description=(
            "pairs (complementary halves), bernoulli (a coin each) or given (a mask): what draws"
            " the members"
        ),
    )
    population: Whole = Field(
        0, ge=0, le=10**9, description="a number of images set aside that no model sees, from 0 up"
    )
    seed: Whole = Field(
        0, description="a whole number, which draws membership, initial weights and batches"
    )
    epochs: Whole = Field(
        20,
        ge=0,
        le=10**6,
        description=(
            "a number of passes over a model's images, from 1 (0 for a derived pool) to 1000000"
        ),
    )
    snapshots: list[Annotated[Whole, Field(ge=1)]] = Field(
        [],
        description=(
            "a list of epochs after which the weights are kept too: whole numbers from 1 up"
        ),
    )
    batch: Whole = Field(
        32, ge=1, le=10**9, description="a number of images in an optimiser step, from 1 up"
    )
    lr: float = Field(0.1, gt=0, description="the peak learning rate, a finite number above 0")
    optimizer: str = Field(
        "sgd", min_length=1, description="the name of an optimiser: sgd, adam or muon"
    )
    optimizer_args: dict[str, Any] = Field(
        {}, description="a mapping of the optimiser's options; empty for its usual ones"
    )
    schedule: Literal[SCHEDULES] = Field(
        "one_cycle", description=f"{', '.join(SCHEDULES)}: how the learning rate changes"
    )
    augment: str = Field(
        "none",
        pattern=r"^(none|({0})(\+({0}))*)$".format("|".join(AUGMENTATIONS)),
        description=f"none, or some of {', '.join(AUGMENTATIONS)} joined by +",
    )
    loss: str = Field(
        "cross_entropy",
        min_length=1,
        description="the name of a loss: cross_entropy, or tet for spiking networks",
    )
    dtype: Literal[DTYPES] = Field(
        "float32", description="float32, float64 or bfloat16 (automatic mixed precision)"
    )
    defense: str | None = Field(
        None,
        min_length=1,
        description="the name of a defense (a key of defenses.DEFENSES), or None",
    )
    defense_args: dict[str, Any] = Field(
        {}, description="a mapping of the defense's options; empty for its usual ones"
    )
    parent: str | None = Field(
        None, min_length=1, description="the key of the pool that this one starts from, or None"
    )

    @field_validator("model", "optimizer", "defense", "loss")
    @classmethod
    def _lower_case(cls, name: str | None) -> str | None:
        """Names in lower case; people may write ResNet18, RelaxLoss, SGD."""
        if name is None or ":" in name:  # package.module:function
            return name
        return name.lower()

    @field_validator("snapshots")
    @classmethod
    def _before_the_end(cls, value, info):
        return sorted({epoch for epoch in value if epoch < info.data.get("epochs", 0)})

    @model_validator(mode="after")
    def _fits_together(self):
        if self.epochs == 0 and self.parent is None:
            raise ValueError(
                "epochs=0: a pool needs at least 1, unless it starts from a parent's weights"
            )
        if self.split == "pairs" and self.num_models % 2:
            raise ValueError(
                f"num_models={self.num_models} is odd: complementary pairs need an even number;"
                f" take {self.num_models + 1}"
            )
        return self


class Query(Record):
    """How a pool's models are queried, the same for all of them (`mia_nb.query`)."""

    queries: Whole = Field(
        1, ge=1, description="a number of queries per model and image, from 1 up"
    )
    input_dropout: float = Field(
        0.0, ge=0, lt=1, description="a fraction in [0, 1): the share of input values set to zero"
    )
    mask_scope: Literal["query", "step"] = Field(
        "query", description="query, or step for spiking networks: what one mask is drawn for"
    )
    augment: bool = Field(False, description="true or false: query augmented copies too")
    noise: bool | None = Field(
        None, description="true, false, or None: noise of stochastic models, None as built"
    )
    per_step: bool | Literal["cumulative", "instant"] = Field(
        False, description="False, True, 'cumulative' or 'instant'"
    )
    temperature: float = Field(
        1.0, gt=0, description="a finite number above 0, by which logits are divided"
    )
    activity: bool = Field(
        False, description="true or false: look at what spiking networks do besides answering"
    )
    output: str | None = Field(
        None, min_length=1, description="the name of a defense of the output, or None"
    )
    output_args: dict[str, Any] | None = Field(
        None, description="a mapping of that defense's options, or None"
    )
    limit: Whole | None = Field(
        None, ge=1, le=10**9, description="a number of images from 1 up, or None for all"
    )
    seed: Whole = Field(0, description="a whole number, which draws masks, augmentation and noise")
