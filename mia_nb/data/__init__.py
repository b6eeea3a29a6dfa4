"""Data sets as uint8 tensors, their normalisation and augmentation, and membership masks: which
model trains on which samples.
"""

from mia_nb.data.arrays import check_images, from_arrays
from mia_nb.data.augmentation import apply_augment, augment_draws
from mia_nb.data.events import events_from_images
from mia_nb.data.loading import DATASETS, load
from mia_nb.data.membership import bernoulli_membership, paired_membership
from mia_nb.data.normalisation import normalise

__all__ = [
    "DATASETS",
    "apply_augment",
    "augment_draws",
    "bernoulli_membership",
    "check_images",
    "events_from_images",
    "from_arrays",
    "load",
    "normalise",
    "paired_membership",
]
