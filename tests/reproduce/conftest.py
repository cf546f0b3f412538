import pytest
from tests.reproduce.small_experiment import write_experiments

from ipfl.reproduce import experiments


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Experiments of the tests' own, instead of the paper's."""
    folder = write_experiments(tmp_path / "experiments")
    monkeypatch.setattr(experiments, "experiments_folder", lambda: folder)
    experiments.read_common.cache_clear()
    yield experiments.read_experiment("tiny")
    experiments.read_common.cache_clear()
