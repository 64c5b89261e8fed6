"""
A network in your own loop
==========================

``make_private`` turns a module, an optimizer and a data loader into private ones with a constraint. The loop stays as it is.
"""

import matplotlib.pyplot as plt
import torch
from torch.utils.data import DataLoader, Dataset

from ratewise import demographic_parity
from ratewise.datasets import census_like
from ratewise.torch import make_private

people, others = census_like(8_000, random_state=0), census_like(8_000, random_state=1)
scale = torch.tensor(people.feature_bounds[1], dtype=torch.float32)


class People(Dataset):
    """Features, label and group of each person."""

    def __len__(self):
        return len(people.y)

    def __getitem__(self, i):
        return torch.tensor(people.X[i]) / scale, int(people.y[i]), {"sex": str(people.sensitive["sex"][i])}


torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(network.parameters(), lr=4.0)
network, optimizer, loader, criterion = make_private(
    network, optimizer, DataLoader(People(), batch_size=512), demographic_parity("sex", max_gap=0.05),
    epsilon=2.0, delta=1e-5, epochs=20, classes=(0, 1), group_values={"sex": ("Female", "Male")},
)  # fmt: skip

scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=20)
accuracies = []
for _ in range(20):
    for x, labels, cells in loader:
        criterion(network(x), labels, cells).backward()
        optimizer.step()
    scheduler.step()
    with torch.no_grad():  # on other people: not private rows
        accuracies.append(float((network(torch.tensor(others.X) / scale).argmax(1).numpy() == others.y).mean()))
print(optimizer.finish())

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(range(1, 21), accuracies, "o-", color="#2166ac")
axis.set(xlabel="epoch", ylabel="accuracy on other people", xticks=range(2, 21, 2))
