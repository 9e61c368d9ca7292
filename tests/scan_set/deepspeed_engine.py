import deepspeed

engine, optimizer, _, _ = deepspeed.initialize(model=model, config="ds.json")
for batch in batches:
    engine.backward(engine(batch))
    engine.step()
