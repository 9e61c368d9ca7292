import lightning as L

trainer = L.Trainer(devices=1, accelerator="gpu")
trainer.fit(model)
