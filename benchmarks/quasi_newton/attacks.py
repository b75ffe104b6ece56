"""What guest, hosts and coordinator find out about each other, by trying, in the order of
docs/quasi-newton-privacy.md.

Parties see what the protocol tells them: gradients over their own columns, ciphertexts, names that are
common. What an attacker knows besides is said with each attack.
"""

from __future__ import annotations

from benchmarks.attacks import Attacks
from benchmarks.quasi_newton.bound_attacks import numbers_beyond_the_bounds, others_in_the_place_of_sums
from benchmarks.quasi_newton.ciphertext_attacks import (
    exponents,
    residuals_divided,
    the_brokers_records,
    the_same_work_with_other_numbers,
)
from benchmarks.quasi_newton.coordinator_attacks import (
    lengths_of_steps,
    the_model,
    uploads_of_residuals,
    what_is_decrypted,
)
from benchmarks.quasi_newton.label_attacks import (
    far_out,
    few_rows,
    lattice,
    many_gradients,
    outputs_from_gradients,
)
from benchmarks.quasi_newton.name_attacks import a_bit_of_each_name, names_tried_out, rate_of_trying
from benchmarks.quasi_newton.score_attacks import columns_of_a_customer, weights_of_the_host

ATTACKS: Attacks = {
    function.__name__: function
    for function in (
        many_gradients,
        few_rows,
        far_out,
        lattice,
        outputs_from_gradients,
        residuals_divided,
        exponents,
        the_same_work_with_other_numbers,
        the_brokers_records,
        the_model,
        what_is_decrypted,
        lengths_of_steps,
        uploads_of_residuals,
        numbers_beyond_the_bounds,
        others_in_the_place_of_sums,
        names_tried_out,
        rate_of_trying,
        a_bit_of_each_name,
        columns_of_a_customer,
        weights_of_the_host,
    )
}
