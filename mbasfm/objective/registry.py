"""All kinds of residuals by name."""

from mbasfm.objective.anchored import AnchoredForm
from mbasfm.objective.isotropic import IsotropicForm
from mbasfm.objective.residual_kind import Form
from mbasfm.objective.split import SplitForm

KINDS: dict[str, type[Form]] = {
    "anchored": AnchoredForm,
    "isotropic": IsotropicForm,
    "split": SplitForm,
}
"""Form of each kind that ``Stage.residual`` may name."""
