"""
Two releases of one sample, accounted as two samples
====================================================

In each step a noisy gradient and a noisy table of predictions are computed from the *same* random sample. Accounting for them as if each had its
own sample is common, and understates epsilon.
"""

import matplotlib.pyplot as plt
import numpy as np

from ratewise.accounting import TrainingEvent, epsilon

# %%
# The attack
# ----------
# Randomised response tells the truth with probability 3/4. A person takes part with probability 0.1, and answers twice. The adversary looks at the
# answers "yes, yes".

q = 0.1
without = (1 / 4) ** 2
with_person = (1 - q) * (1 / 4) ** 2 + q * (3 / 4) ** 2
separate = (1 - q + q * 3) ** 2
print(f"true likelihood ratio {with_person / without:.2f}; accounting with two samples claims at most {separate:.2f}")
assert with_person / without > separate

# %%
# In training
# -----------
# 1000 steps at a sampling rate of 0.02 with a Laplace table, delta 1e-5. The lower curve is a false claim.

noises = np.array([0.8, 1.0, 1.4, 2.0, 3.0, 4.0])
claimed, true = [], []
for noise in noises:
    parts = (TrainingEvent(0.02, 1000, noise), TrainingEvent(0.02, 1000, None, noise, "laplace"))
    claimed.append(epsilon(parts, 1e-5))
    true.append(epsilon(TrainingEvent(0.02, 1000, noise, noise, "laplace"), 1e-5))
figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
axis.plot(noises, true, color="#2166ac")
axis.plot(noises, claimed, color="#b2182b")
axis.annotate("one shared sample", (noises[1], true[1]), (8, 4), textcoords="offset points", color="#2166ac")
axis.annotate("two samples (false)", (1.0, 1.2), color="#b2182b")
axis.set(xlabel="noise of both releases", ylabel="epsilon", ylim=(0, None))
assert all(np.array(true) > claimed)
for noise, false, right in zip(noises, claimed, true, strict=True):
    print(f"noise {noise}: claimed {false:.2f}, spent {right:.2f}")
