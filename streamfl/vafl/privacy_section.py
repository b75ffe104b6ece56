"""Noise and budgets: the settings of the section privacy."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from streamfl.configuration.settings import Section
from streamfl.state.changeable import CHANGEABLE

__all__ = ["PrivacySection"]

# Bounds of noise, in multiples of the quantity that it hides. Less noise hides nothing, and the square of mu
# might be infinite. More noise leaves no signal, and a sum on a grid might not be exact.
LEAST_NOISE, MOST_NOISE = 1e-6, 1e5


class PrivacySection(Section):
    """A party's noise on embeddings and steps, and its budget; the coordinator's noise on gradients, and its
    budget."""

    embedding_norm: Annotated[float | None, CHANGEABLE] = Field(default=None, gt=0, allow_inf_nan=False)
    """C, the Euclidean norm of an embedding; needs embedding_noise."""
    normalise: Annotated[bool, CHANGEABLE] = True
    """Whether every embedding is scaled to the norm C, or only longer ones are shortened to it."""
    embedding_noise: Annotated[float | None, CHANGEABLE] = Field(default=None, gt=0, allow_inf_nan=False)
    """c, the standard deviation of the noise on each number of an embedding; from 1e-6 to 100,000 times C."""
    gradient_norm: Annotated[float | None, CHANGEABLE] = Field(default=None, gt=0, allow_inf_nan=False)
    """S, the norm to which an entity's share of a step is clipped; needs gradient_noise."""
    gradient_noise: Annotated[float | None, CHANGEABLE] = Field(default=None, gt=0, allow_inf_nan=False)
    """sigma, the standard deviation of the noise on each step, in units of S; from 1e-6 to 100,000."""
    hidden_noise: Annotated[float, CHANGEABLE] = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Standard deviation of uniform noise inside the activations of hidden layers. No protection is claimed
    for it."""
    budget_mu: Annotated[float | None, CHANGEABLE] = Field(default=None, gt=0, allow_inf_nan=False)
    """The mu of Gaussian differential privacy that no entity may exceed; nothing is sent that would exceed
    it. A party's budget is for its features, with gradient_noise. The coordinator's is for its labels, with
    reply_noise. A budget too small to learn from any entity is refused."""
    without_noise: Annotated[bool, CHANGEABLE] = False
    """`true`: a member that has sent with noise goes on without. Its claim about mu ends, and that cannot be
    taken back. With `false` such a member does not start when its noise is no longer configured."""
    secret_file: Annotated[str | None, CHANGEABLE] = None
    """A file with at least 32 bytes that nobody else knows. All noise, and first parameters, are drawn from
    it. It is refused if other users may read it (`chmod 600`), or if it is too regular to be a secret."""
    ledger_limit: Annotated[int, CHANGEABLE] = Field(default=1_000_000, ge=1)
    """Most entities per partition in the ledger of what was sent, or released of their labels. Nothing is
    sent of others."""
    reply_noise: Annotated[float, CHANGEABLE] = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Coordinator: standard deviation of the noise on gradients, which otherwise reveal the label; 0, or from
    1e-6 to 100,000."""

    @model_validator(mode="after")
    def _keys_that_need_each_other(self) -> PrivacySection:
        def missing(key: str, why: str) -> ValueError:
            return ValueError(f"{key} is missing: {why}")

        if (self.embedding_norm is None) != (self.embedding_noise is None):
            key = "embedding_norm" if self.embedding_norm is None else "embedding_noise"
            raise missing(key, "an embedding's norm and the noise on it protect only together")
        if (self.gradient_norm is None) != (self.gradient_noise is None):
            key = "gradient_norm" if self.gradient_norm is None else "gradient_noise"
            raise missing(key, "a gradient's norm and the noise on it protect only together")
        if self.embedding_norm is None and (
            self.gradient_norm or self.hidden_noise or (self.budget_mu and not self.reply_noise)
        ):
            raise missing("embedding_norm", "a privacy guarantee needs embeddings with a norm and noise")
        hidden = {"embedding_noise": self.embedding_norm or 1.0, "gradient_noise": 1.0, "reply_noise": 1.0}
        for key, unit in hidden.items():
            noise, least, most = getattr(self, key) or 0.0, LEAST_NOISE * unit, MOST_NOISE * unit
            if 0 < noise < least:
                raise ValueError(
                    f"{key} = {noise:g}: at least {least:g} is expected: less noise hides nothing"
                )
            if noise > most:
                raise ValueError(
                    f"{key} = {noise:g}: at most {most:g} is expected: more noise leaves nothing to learn"
                )
        noise = (
            "embedding_norm"
            if self.embedding_norm is not None
            else "reply_noise"
            if self.reply_noise
            else None
        )
        if self.without_noise and noise is not None:
            raise ValueError(f"without_noise = true has no meaning with {noise}: leave one of them out")
        if (self.embedding_norm or self.reply_noise) and self.secret_file is None:
            raise missing("secret_file", "noise that others can compute protects nothing")
        if self.budget_mu is not None and self.gradient_noise is None and self.embedding_norm is not None:
            raise missing(
                "gradient_noise", "without noise on steps mu says nothing about what later embeddings reveal"
            )
        return self
