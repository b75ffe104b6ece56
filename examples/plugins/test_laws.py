"""The models of the package obey the laws that every model has to obey."""

from streamfl.learning.own_models import OwnModel
from streamfl.testing.model_laws import ModelLaws


class TestHolt(ModelLaws):
    """It remembers itself."""

    own = OwnModel("holt", "plant_plugins.models:Holt", {"level_rate": 0.8})


class TestLine(ModelLaws):
    """A pipeline of River's."""

    own = OwnModel("line", "plant_plugins.models:line")
