"""What members of a vertical federation find out about each other, by trying, in the order of
docs/vertical-privacy.md.

Each is run against a federation without the protection and with it. What an attacker sees is what lies on its
topics; what it knows besides is said with each attack.
"""

from __future__ import annotations

from benchmarks.attacks import Attacks
from benchmarks.vafl.feature_attacks import (
    another_norm,
    inverted_embeddings,
    known_records,
    last_digits,
    membership,
    revisions,
    the_other_party,
)
from benchmarks.vafl.label_attacks import (
    an_entity_that_returns,
    last_digits_of_a_label,
    many_gradients,
    sign_of_a_gradient,
    two_federations,
)

ATTACKS: Attacks = {
    function.__name__: function
    for function in (
        sign_of_a_gradient,
        many_gradients,
        an_entity_that_returns,
        two_federations,
        inverted_embeddings,
        known_records,
        the_other_party,
        revisions,
        last_digits,
        last_digits_of_a_label,
        another_norm,
        membership,
    )
}
