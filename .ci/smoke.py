"""A small fit with the installed package, run outside the repository: ``python smoke.py VERSION``."""

import importlib.metadata
import sys
import tempfile
from importlib import resources
from pathlib import Path

import ratewise
from ratewise import RateConstrainedClassifier, demographic_parity
from ratewise.datasets import census_like

assert importlib.metadata.version("ratewise") == sys.argv[1]
assert "site-packages" in ratewise.__file__, ratewise.__file__
assert (resources.files("ratewise") / "py.typed").is_file()
assert any((resources.files("ratewise") / "report" / "assets").iterdir())
assert "torch" not in sys.modules

people = census_like(5_000, random_state=0)
model = RateConstrainedClassifier(demographic_parity("sex", max_gap=0.1), epsilon=1.0)
model.fit(people.X, people.y, sensitive_features=people.sensitive)
assert 0.999 <= model.privacy_.epsilon <= 1.0
assert model.score(people.X, people.y) > 0.75
assert any(word in str(model.certificate_) for word in ("held", "missed", "cannot tell"))
with tempfile.TemporaryDirectory() as folder:
    model.save(Path(folder) / "model.ratewise")
    again = ratewise.load(Path(folder) / "model.ratewise")
    model.report(people.X, people.y, sensitive_features=people.sensitive).to_html(Path(folder) / "report.html")
assert (again.predict(people.X) == model.predict(people.X)).all()
print("fit, certificate, report and a saved model work:", model.certificate_.summary)
