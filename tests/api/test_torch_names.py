"""The public surface of `ratewise.torch`, and what is said without PyTorch."""

import inspect
import subprocess
import sys
import types

import ratewise.torch


def test_list_and_namespace_agree_and_every_name_is_documented():
    found = {
        name
        for name, value in vars(ratewise.torch).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert found == set(ratewise.torch.__all__)
    assert len(ratewise.torch.__all__) == len(found)
    for name in found:
        assert inspect.getdoc(getattr(ratewise.torch, name)), name


def test_names_that_others_rely_on():
    assert {"TorchRateConstrainedClassifier", "make_private", "resnet16"} <= set(ratewise.torch.__all__)
    parameters = list(inspect.signature(ratewise.torch.TorchRateConstrainedClassifier).parameters.values())
    assert [parameter.name for parameter in parameters[:2]] == ["module", "constraints"]
    assert parameters[1].default is None
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters[2:])


def test_without_pytorch_the_extra_is_named():
    code = (
        "import ratewise, sys; sys.modules['torch'] = None\n"
        "try:\n    import ratewise.torch\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install ratewise[torch]" in done.stdout, done.stderr
