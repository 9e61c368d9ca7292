import pytorch_lightning as pl

pl.Trainer(devices=4, strategy="ddp").fit(model)
