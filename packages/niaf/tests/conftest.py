"""One thread, and torch's own warning on importing torch.func."""

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))
