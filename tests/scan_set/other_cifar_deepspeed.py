import argparse

import deepspeed
import torch.nn as nn
from deepspeed.moe.layer import MoE


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--num-experts", type=int, nargs="+", default=[1])
    return deepspeed.add_config_arguments(parser).parse_args()


class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.layers = nn.ModuleList(
            [
                MoE(hidden_size=84, expert=nn.Linear(84, 84), num_experts=n, ep_size=args.ep_world_size)
                for n in args.num_experts
            ]
        )

    def forward(self, x):
        x = self.conv1(x).flatten(1)
        for layer in self.layers:
            x, _, _ = layer(x)
        return x


def main(args):
    deepspeed.init_distributed()
    net = Net(args)
    engine, optimizer, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=filter(lambda p: p.requires_grad, net.parameters()), training_data=trainset
    )
    for epoch in range(args.epochs):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(engine(inputs.to(engine.local_rank)), labels)
            engine.backward(loss)
            engine.step()


if __name__ == "__main__":
    main(get_args())
