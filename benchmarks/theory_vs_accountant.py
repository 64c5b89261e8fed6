"""How loose the closed forms are against the accountant.

For each setting: the noise that the paper's privacy theorem asks for, and the noise for which the theorem can
be proven, with the epsilon that they really spend; and by what factor *both* noises could be divided so that
the accountant finds exactly the target. A factor below 1 means that the theorem's noise is too small. The
last columns are what `calibrate` gives. Then the convergence theorem: what it promises for growing data. Run:

    python -m benchmarks theory_vs_accountant              # Markdown, as in docs/api/closed-forms.md
"""

import math

from scipy import optimize

from ratewise.accounting import TrainingEvent, calibrate, epsilon, theory

SETTINGS = [
    (1.0, 1e-5, 0.2, 200),
    (1.0, 1e-5, 0.0016, 12_000),
    (1.0, 1e-5, 0.01, 1000),
    (1.0, 1e-5, 1.0, 1),
    (0.1, 1e-6, 0.05, 500),
    (3.0, 1e-5, 0.02, 2000),
    (5.0, 1e-9, 0.05, 15),
    (7.0, 1e-9, 0.05, 15),
    (10.0, 1e-9, 0.03, 40),
    (20.0, 1e-5, 0.01, 1000),
    (30.0, 1e-5, 0.01, 1000),
]


def spent(noise, delta, rate, steps, divide=1.0):
    event = TrainingEvent(rate, steps, noise.gradient_noise / divide, noise.laplace_scale / divide, "laplace")
    return epsilon(event, delta)


def looseness(noise, target, delta, rate, steps):
    """Factor by which both noises can be divided before the target is spent."""

    def excess(log_factor):
        return math.log(spent(noise, delta, rate, steps, math.exp(log_factor)) / target)

    return math.exp(optimize.brentq(excess, math.log(0.4), math.log(20), xtol=3e-3))


def privacy_rows():
    for target, delta, rate, steps in SETTINGS:
        row = [f"{target:g}", f"{delta:g}", f"{rate:g}", str(steps)]
        for rule in (theory.paper_noise, theory.proven_noise):
            if rule is theory.proven_noise and target > math.log(steps / delta):
                row += ["out of range", "", "", ""]
                continue
            noise = rule(target, delta, rate, steps)
            found = spent(noise, delta, rate, steps)
            found_text = f"**{found:.3g}**" if found > target else f"{found:.3g}"
            factor = looseness(noise, target, delta, rate, steps)
            row += [f"{noise.gradient_noise:.3g}", f"{noise.laplace_scale:.3g}", found_text, f"{factor:.2g}"]
        found = calibrate(target, delta, rate, steps, histogram="laplace")
        yield [*row, f"{found.gradient_noise:.3g}", f"{found.histogram_noise:.3g}"]


def convergence_rows():
    for rows in (10**4, 10**6, 10**8, 10**10, 10**12):
        problem = theory.RateProblem(
            rows=rows,
            smallest_cell=rows // 4,
            parameters=20,
            classes=2,
            constraints=4,
            alpha_norm=2.0,
            multiplier_radius=1.0,
            model=theory.linear_softmax(1.0),
        )
        plan = theory.convergence_plan(
            problem, epsilon=1.0, delta=1e-8, failure=0.05, envelope_gap=1.0, lagrangian_rise=1.0
        )
        yield [
            f"1e{round(math.log10(rows))}",
            str(plan.steps),
            f"{plan.sampling_rate:.2g}",
            f"{plan.noise.laplace_scale:.3g}",
            f"{plan.gradient_std:.2g}",
            f"{plan.errors.primal:.2g}",
            f"{plan.errors.dual:.2g}",
            f"{plan.stationarity:.2g}",
        ]


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    each = ["gradient noise", "Laplace scale", "really spends", "noise / needed"]
    table(
        ["epsilon", "delta", "q", "steps"]
        + [f"{rule}: {name}" for rule in ("paper", "proven") for name in each]
        + [f"calibrate: {name}" for name in each[:2]],
        privacy_rows(),
    )
    print()
    table(
        ["rows", "steps", "q", "Laplace scale", "gradient std", "primal error", "dual error", "alpha"],
        convergence_rows(),
    )
