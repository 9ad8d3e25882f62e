"""Verification rules, one file per family. docs/rules.md lists them."""

from sdbench.types import DraftBlock, Evidence, Measures, Verdict, Verifier
from sdbench.verify.block import Block
from sdbench.verify.budget import ASD
from sdbench.verify.cascade import (
    CascadeChow,
    CascadeDiff,
    CascadeOPT,
    CascadeV1,
    CascadeV2,
    CascadeV3,
    FuzzyJS,
    FuzzyKL,
    FuzzyTV,
)
from sdbench.verify.combine import Coin, Sure, Within
from sdbench.verify.constrained import Cactus, Mentored
from sdbench.verify.controls import Confidence, Synthetic
from sdbench.verify.ensemble import Ensemble
from sdbench.verify.exact import Exact
from sdbench.verify.families import at_slots, family, refuse_tensors, stack
from sdbench.verify.fly import FLy
from sdbench.verify.greedy import GreedyLaw, GreedySet
from sdbench.verify.head import Head
from sdbench.verify.joint import Joint
from sdbench.verify.learned import Diversed, Judge
from sdbench.verify.lenient import Lenience, Lossy
from sdbench.verify.matching import ExactMatch, SGLang
from sdbench.verify.sets import MARS, BiLD, SetRule, SpecDec, TopKRelaxed, Typical
from sdbench.verify.tokenwise import Tokenwise, Towards, knob
from sdbench.verify.uncertain import EARS, EASD, Contrastive

__all__ = [
    "ASD",
    "EARS",
    "EASD",
    "MARS",
    "BiLD",
    "Block",
    "Cactus",
    "CascadeChow",
    "CascadeDiff",
    "CascadeOPT",
    "CascadeV1",
    "CascadeV2",
    "CascadeV3",
    "Coin",
    "Confidence",
    "Contrastive",
    "Diversed",
    "DraftBlock",
    "Ensemble",
    "Evidence",
    "Exact",
    "ExactMatch",
    "FLy",
    "FuzzyJS",
    "FuzzyKL",
    "FuzzyTV",
    "GreedyLaw",
    "GreedySet",
    "Head",
    "Joint",
    "Judge",
    "Lenience",
    "Lossy",
    "Measures",
    "Mentored",
    "SGLang",
    "SetRule",
    "SpecDec",
    "Sure",
    "Synthetic",
    "Tokenwise",
    "TopKRelaxed",
    "Towards",
    "Typical",
    "Verdict",
    "Verifier",
    "Within",
    "at_slots",
    "family",
    "knob",
    "refuse_tensors",
    "stack",
]
