"""What importing and using the library loads: nothing that only some users have."""

import pkgutil
import subprocess
import sys

import pytest

import ratewise

HEAVY = ("torch", "opacus", "matplotlib", "pandas", "polars", "pyarrow", "jax", "tensorflow", "cvxpy")
ROOMS = sorted(
    module.name
    for module in pkgutil.walk_packages(ratewise.__path__, "ratewise.")
    if not module.name.startswith("ratewise.torch") and not module.name.endswith("__main__")
)

# scikit-learn loads pandas if it finds it, so what it needs is loaded first, and then every attempt is noted.
CHILD = """
import importlib, sys

class Absent:
    tried = []

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in heavy:
            self.tried.append(name)
            raise ImportError(name + " is not installed")

heavy = sys.argv[1].split(",")
sys.meta_path.insert(0, Absent())
import dp_accounting.pld.privacy_loss_distribution, scipy.optimize, scipy.stats, sklearn.linear_model

def noting(what, work):
    Absent.tried.clear()
    try:
        work()
    except ImportError as error:
        print(what, "does not work:", error)
    if Absent.tried:
        print(what, "loads", Absent.tried)

def use():
    import numpy as np
    from ratewise import RateConstrainedClassifier, demographic_parity
    from ratewise.metrics import rate_report
    X, y, sex = np.random.default_rng(0).normal(size=(2000, 2)), np.arange(2000) % 2, np.arange(2000) % 3 % 2
    limit = demographic_parity("sex", max_gap=0.2)
    model = RateConstrainedClassifier(limit, classes=(0, 1), group_values={"sex": (0, 1)})
    model.fit(X, y, sensitive_features={"sex": sex})
    rate_report(limit, y, model.predict(X), sensitive_features={"sex": sex})

for room in sys.argv[2:]:
    noting(room, lambda: importlib.import_module(room))
noting("a fit", use)
"""


def children(*rooms):
    command = [sys.executable, "-c", CHILD, ",".join(HEAVY), *rooms]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_no_package_loads_a_framework():
    expected = {"ratewise.estimators.classifier", "ratewise.accounting.ledger", "ratewise.models.linear"}
    assert expected <= set(ROOMS)
    assert children(*ROOMS) == []


def test_the_check_sees_what_is_loaded():
    """A module that loads pandas, though it bears its absence, and one that does not."""
    found = children("sklearn.utils._testing", "pandas", "json")
    assert any("pandas" in line for line in found)
    assert not any("json" in line for line in found)


# what starting a command may not load: a fit, a plot or a table needs it, a mistyped option does not
SLOW = ("sklearn", "scipy.stats", "pandas", "matplotlib")
PARSE = """
import sys
from ratewise.cli.app import COMMANDS, cli
sys.argv[1] == "import" and __import__(sys.argv[2])
lines = [*([name, "--help"] for name in COMMANDS), ["train", "absent.csv", "--out", "absent"], ["train", "--nonsense"]]
for words in lines:
    try:
        cli.main(words, prog_name="ratewise")
    except SystemExit as end:
        assert end.code == (0 if words[1] == "--help" else 2), words
print("loaded", *sorted(set(sys.modules) & set(sys.argv[3:])))
"""


def loaded_by_commands(*first):
    pytest.importorskip("click")
    command = [sys.executable, "-c", PARSE, *(first or ("nothing", "")), *SLOW]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def test_a_command_line_is_parsed_without_slow_packages():
    assert loaded_by_commands() == []
    assert "scipy.stats" in loaded_by_commands("import", "scipy.stats")
