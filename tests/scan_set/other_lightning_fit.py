import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy
from torch import nn


class LitModel(L.LightningModule):
    def __init__(self, width=4096):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def cli_main():
    L.seed_everything(42)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=-1,
        strategy=FSDPStrategy(sharding_strategy="FULL_SHARD"),
        precision="bf16-mixed",
        max_epochs=3,
        callbacks=[ModelCheckpoint(monitor="train_loss")],
    )
    trainer.fit(LitModel(), datamodule=MyData())


if __name__ == "__main__":
    cli_main()
