from transformers import Trainer, TrainingArguments, pipeline

trainer = Trainer(model=model, args=TrainingArguments("out"))
trainer.train()
pipeline("text-generation")
