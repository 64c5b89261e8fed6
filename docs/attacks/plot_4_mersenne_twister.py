"""
Noise from a Mersenne Twister
=============================

The default generators of PyTorch on the CPU and of ``numpy.random.seed`` are Mersenne Twisters. Their state follows from 624 outputs. An adversary who
knows the noise of a few releases knows the noise of all later ones.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import ndtr, ndtri

STATE = 624


def noise(generator, size):
    """Return normal draws by inversion, one 32-bit word each."""
    return ndtri((generator.random_raw(size) + 0.5) / 2.0**32)


# %%
# The attack
# ----------
# The first 624 noisy counts are of cells that the adversary knows, such as groups without rows. The later ones are secret.

generator = np.random.MT19937(np.random.SeedSequence().entropy)
known = 20 * noise(generator, STATE)
secret = np.random.default_rng(1).integers(0, 40, 30)
released = secret + 20 * noise(generator, len(secret))


def untemper(word):
    """Invert the output function of the generator."""
    word ^= word >> 18
    word ^= (word << 15) & 0xEFC60000
    unmixed = word
    for _ in range(5):
        unmixed = word ^ ((unmixed << 7) & 0x9D2C5680)
    word = unmixed
    for _ in range(3):
        unmixed = word ^ (unmixed >> 11)
    return unmixed & 0xFFFFFFFF


words = np.rint(ndtr(known / 20) * 2.0**32 - 0.5).astype(np.uint64)
copy = np.random.MT19937(0)
copy.state = {
    "bit_generator": "MT19937",
    "state": {"key": np.array([untemper(int(word)) for word in words], dtype=np.uint32), "pos": STATE},
}
recovered = released - 20 * noise(copy, len(secret))
print("largest error of the recovered counts:", float(np.abs(recovered - secret).max()))
assert np.allclose(recovered, secret)

figure, axis = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
axis.plot(released, "x", color="#999999", label="released, with noise")
axis.plot(secret, "o", color="black", markerfacecolor="none", markersize=9, label="secret")
axis.plot(recovered, ".", color="#b2182b", label="recovered")
axis.set(xlabel="count", ylabel="value")
axis.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))

# %%
# The defence
# -----------
# Without a seed, every draw of the library is made from fresh bytes of OpenSSL's generator, in networks too. There is no state to recover. With a
# seed (``random_state``) a warning says that the result must not be published: :doc:`/threat-model`.
