"""Methods: each an `nn.Module` with its whole life, one per file."""

from due.methods.answer import ClassAnswer, EffectAnswer, ValueAnswer
from due.methods.due import DUE
from due.methods.method import Method
from due.methods.treatment_due import TreatmentDUE

__all__ = ["DUE", "ClassAnswer", "EffectAnswer", "Method", "TreatmentDUE", "ValueAnswer"]
