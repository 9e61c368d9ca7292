import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader


def main():
    fabric = Fabric(accelerator="cuda", devices=8, strategy="ddp", precision="16-mixed")
    fabric.launch()
    fabric.seed_everything(1)

    model = Transformer(vocab_size=50_000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(WikiText(), batch_size=20, shuffle=True))

    for epoch in range(10):
        for step, (inputs, target) in enumerate(loader):
            output = model(inputs, target)
            loss = torch.nn.functional.nll_loss(output, target.view(-1))
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, clip_val=0.25)
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                fabric.print(f"epoch {epoch} step {step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
