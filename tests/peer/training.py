"""A training run that saves, or goes on from what was saved; it runs alike with this release and with 1.15.

Called as `python training.py '<settings as JSON>'` in each process. It prints one line of JSON: what the run has
computed after saving, or after loading. The two are the same if everything was restored.
"""

import json
import sys
import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Counter:
    """An object to register for checkpointing."""

    def __init__(self, count=0):
        self.count = count
        self.history = torch.zeros(3)

    def state_dict(self):
        return {"count": self.count, "history": self.history, "nested": {"list": [1, "two", 3.0]}}

    def load_state_dict(self, state):
        assert state["nested"] == {"list": [1, "two", 3.0]}
        self.count, self.history = state["count"], state["history"]


class Run:
    """Two models with an optimizer and a scheduler each, a loader, a counter; everything depends on random numbers."""

    def __init__(self, settings):
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed

        self.settings = settings
        project = ProjectConfiguration(settings["folder"], automatic_checkpoint_naming=settings.get("automatic", False))
        stateful = settings.get("stateful", False)
        self.accelerator = Accelerator(
            cpu=True,
            mixed_precision=settings.get("precision", "no"),
            project_config=project,
            dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=stateful),
        )
        if settings.get("scaler"):  # 1.15 makes one for accelerators only
            scale = 2.0**9 if settings["action"] == "save" else 2.0**16
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        set_seed(5 if settings["action"] == "save" else 1234, device_specific=True)
        models = [
            torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)) for _ in range(2)
        ]
        if settings.get("tied"):
            models[0] = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 4))
            models[0][2].weight = models[0][0].weight
        optimizers = [
            torch.optim.AdamW(models[0].parameters(), lr=0.1),
            torch.optim.SGD(models[1].parameters(), lr=0.1),
        ]
        if settings.get("groups"):
            groups = [{"params": [*models[0][0].parameters()], "lr": 0.3}, {"params": [models[0][2].bias]}]
            optimizers[0] = torch.optim.AdamW(groups, lr=0.1)
        schedulers = [
            torch.optim.lr_scheduler.StepLR(optimizers[0], 2, gamma=0.5),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[1], 50),
        ]
        data = TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(1)))
        prepared = self.accelerator.prepare(*models, *optimizers, *schedulers, DataLoader(data, 4, shuffle=stateful))
        self.models, self.optimizers, self.schedulers, self.loader = (
            prepared[:2],
            prepared[2:4],
            prepared[4:6],
            prepared[6],
        )
        self.counter = Counter()
        self.accelerator.register_for_checkpointing(self.counter)

    def step(self, inputs):
        for model, optimizer, scheduler in zip(self.models, self.optimizers, self.schedulers, strict=True):
            loss = model(inputs).float().pow(2).mean()
            self.accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        self.counter.count += 1
        self.counter.history += self.counter.count
        return loss.item()

    def train(self, steps):
        inputs = torch.randn(4, 4, generator=torch.Generator().manual_seed(self.counter.count))
        return [self.step(inputs) for _ in range(steps)]

    def facts(self):
        """Return what training computes from here on, which depends on all that is saved."""
        scaler = self.accelerator.scaler
        before = {
            "count": self.counter.count,
            "step": self.accelerator.step,
            "scale": None if scaler is None else scaler.get_scale(),
            "rates": [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups],
        }
        seen = []
        if self.settings.get("stateful"):
            seen = [[round(value, 6) for value in batch[0].flatten().tolist()] for batch in self.batches]
        losses = self.train(4)
        weights = [
            value.double().sum().item()
            for model in self.models
            for value in self.accelerator.unwrap_model(model).state_dict().values()
        ]
        return {**before, "losses": losses, "weights": weights, "seen": seen, "random": torch.rand(3).tolist()}

    def save(self):
        self.train(5)
        self.batches = iter(self.loader)
        if self.settings.get("stateful"):
            for _ in range(3):
                next(self.batches)
        if self.settings.get("automatic"):
            self.accelerator.save_state(safe_serialization=self.settings.get("safe", True))
            self.train(1)
            self.accelerator.save_state(safe_serialization=self.settings.get("safe", True))
        else:
            folder = self.settings["folder"] + "/saved"
            self.accelerator.save_state(folder, safe_serialization=self.settings.get("safe", True))

    def load(self):
        if self.settings.get("automatic"):
            self.accelerator.load_state()
        else:
            self.accelerator.load_state(self.settings["folder"] + "/saved")
        self.batches = iter(self.loader)


def save_model(settings):
    """Write a model in several files."""
    from accelerate import Accelerator

    torch.manual_seed(3)
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(6))))
    accelerator.save_model(
        model, settings["folder"], max_shard_size=settings["shards"], safe_serialization=settings.get("safe", True)
    )
    return {name: value.double().sum().item() for name, value in model.state_dict().items()}


def load_model(settings):
    """Read such a model."""
    from accelerate import load_checkpoint_in_model

    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(6)))
    load_checkpoint_in_model(model, settings["folder"])
    return {name: value.double().sum().item() for name, value in model.state_dict().items()}


def main(settings):
    import accelerate

    print(f"RELEASE {accelerate.__version__}", flush=True)
    if settings["action"] in ("save_model", "load_model"):
        facts = {"save_model": save_model, "load_model": load_model}[settings["action"]](settings)
    else:
        run = Run(settings)
        getattr(run, settings["action"])()
        facts = run.facts()
    print("FACTS " + json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
