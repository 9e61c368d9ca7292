from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

stage = PipelineStage(model, index, stages, device)
schedule = ScheduleGPipe(stage, n_microbatches=4)
for batch in batches:
    schedule.step(batch)
