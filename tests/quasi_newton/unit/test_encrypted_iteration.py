"""Products of three hosts and a guest at their bounds, through bytes, packing and masks, against integers."""

from __future__ import annotations

import numpy as np
import pytest

from streamfl.quasi_newton.encryption.ciphertexts import decode_ciphertexts, encode_ciphertexts
from streamfl.quasi_newton.encryption.encryptor import Encryptor
from streamfl.quasi_newton.encryption.fixed_point import kinds
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey
from streamfl.quasi_newton.encryption.masks import Masks
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.encryption.products import add, add_plain, transposed_product
from streamfl.quasi_newton.encryption.randomness import RandomnessContext

HOSTS, BATCH, COLUMNS = 3, 24, 8
KINDS = kinds(1 + HOSTS, BATCH, BATCH)
PLACE = RandomnessContext("credit", "run", "guest", 1, "gradients")


@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_at_the_bounds_are_those_of_the_integers(private: PaillierPrivateKey, sign: int) -> None:
    """Protects the iterates: every number is as large as it may be, so that every slot is full, and the sums
    are right to the last bit. The coordinator sees nothing that is near a gradient."""
    key, secret = private.public, bytes(range(32))
    encryptor, masks, packing = Encryptor(key, secret), Masks(key, secret), Packing(key, KINDS.gradients)
    most = KINDS.inner_products.encode(np.full(BATCH, sign * KINDS.inner_products.bound)).tolist()
    signs = KINDS.labels.encode(np.full(BATCH, -float(sign))).tolist()
    matrix = KINDS.inputs.encode(np.full((BATCH, COLUMNS), KINDS.inputs.bound) * (-1.0) ** np.arange(COLUMNS))
    hidden = add(key, *(encryptor.encrypt(most, PLACE) for _ in range(HOSTS)))
    own = [output - 2 * label for output, label in zip(most, signs, strict=True)]
    packed = packing.pack_ciphertexts(transposed_product(key, add_plain(key, hidden, own), matrix))
    masked, digest = masks.mask(packed, PLACE)
    upload = encode_ciphertexts(key, encryptor.rerandomise(masked, PLACE))
    answer = private.decrypt(decode_ciphertexts(key, upload, packing.plaintexts(COLUMNS)))
    assert all(2**412 < plaintext < key.n - 2**412 for plaintext in answer)
    residual = HOSTS * most[0] + own[0]
    assert packing.unpack(masks.unmask(answer, PLACE, digest), COLUMNS) == [
        BATCH * residual * int(number) for number in matrix[0]
    ]
    assert abs(BATCH * residual * int(matrix[0, 0])) == KINDS.gradients.largest
