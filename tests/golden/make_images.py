#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes images.safetensors: make_images.py OUT (needs torch, Pillow and safetensors)

Networks are written here with PyTorch's functions alone, take their parameters one after the other and run in float64. Parameter
n of a network has formula values, so that none has to be kept.
"""
import sys

import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file

WIDTH, SIDE, BATCH, CLASSES = 1 / 16, 16, 5, 3


def waves(shape, phase):
    count = torch.tensor(shape).prod().item()
    return torch.sin(0.37 * torch.arange(count, dtype=torch.float64) + 1.3 * phase + 0.5).view(shape)


def scaled(channels):
    return max(1, round(channels * WIDTH))


class Builder:
    """Hands out parameters in the order in which they are asked for, and keeps running statistics."""

    def __init__(self):
        self.parameters, self.running = [], []
        self.training, self.next, self.next_norm = True, 0, 0

    def parameter(self, shape, scale, offset=0.0):
        if len(self.parameters) == self.next:
            value = offset + scale * waves(shape, self.next)
            self.parameters.append(value.requires_grad_())
        self.next += 1
        return self.parameters[self.next - 1]

    def convolution(self, x, outputs, kernel=3, stride=1, groups=1, bias=False):
        inputs = x.shape[1] // groups
        scale = (2 / (inputs * kernel * kernel)) ** 0.5
        weight = self.parameter((outputs, inputs, kernel, kernel), scale)
        b = self.parameter((outputs,), 0.1) if bias else None
        return F.conv2d(x, weight, b, stride, kernel // 2, 1, groups)

    def conv_norm(self, x, outputs, kernel=3, stride=1, groups=1):
        y = self.convolution(x, outputs, kernel, stride, groups)
        weight, bias = self.parameter((outputs,), 0.3, 1.0), self.parameter((outputs,), 0.2)
        if len(self.running) == self.next_norm:
            self.running.append((torch.zeros(outputs, dtype=torch.float64), torch.ones(outputs, dtype=torch.float64)))
        mean, variance = self.running[self.next_norm]
        self.next_norm += 1
        return F.batch_norm(y, mean, variance, weight, bias, self.training, 0.1, 1e-5)

    def linear(self, x, outputs):
        weight = self.parameter((outputs, x.shape[1]), x.shape[1] ** -0.5)
        return F.linear(x, weight, self.parameter((outputs,), 0.1))

    def run(self, network, x):
        self.next = self.next_norm = 0
        return self.linear(network(self, x), CLASSES)


def cnn(b, x):
    for channels in (64, 128):
        x = F.max_pool2d(F.relu(b.convolution(x, scaled(channels), bias=True)), 2)
    return x.flatten(1)


def resnet18(b, x):
    x = F.relu(b.conv_norm(x, scaled(64)))
    for channels, first_stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first_stride, 1):
            y = b.conv_norm(F.relu(b.conv_norm(x, scaled(channels), stride=stride)), scaled(channels))
            if stride != 1 or x.shape[1] != scaled(channels):
                x = b.conv_norm(x, scaled(channels), kernel=1, stride=stride)
            x = F.relu(x + y)
    return x.mean((2, 3))


def mobilenetv2(b, x):
    x = F.relu(b.conv_norm(x, scaled(32)))
    for expansion, channels, blocks, first_stride in ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2),
                                                      (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for i in range(blocks):
            stride, wide = (first_stride if i == 0 else 1), expansion * x.shape[1]
            y = F.relu(b.conv_norm(x, wide, kernel=1))
            y = F.relu(b.conv_norm(y, wide, stride=stride, groups=wide))
            y = b.conv_norm(y, scaled(channels), kernel=1)
            if stride == 1:
                y = y + (x if x.shape[1] == y.shape[1] else b.conv_norm(x, y.shape[1], kernel=1))
            x = y
    return F.relu(b.conv_norm(x, scaled(1280), kernel=1)).mean((2, 3))


def results(network):
    b = Builder()
    x = waves((BATCH, 3, SIDE, SIDE), 7).requires_grad_()
    logits = b.run(network, x)
    (logits * waves(logits.shape, 3)).sum().backward()
    seen = [[p.grad.norm().item(), (p.grad * waves(p.shape, 11)).sum().item()] for p in b.parameters]
    b.training = False
    found = {"logits": logits, "input_gradient": x.grad, "gradients": torch.tensor(seen, dtype=torch.float64),
             "evaluated": b.run(network, x)}
    if b.running:
        found["running"] = torch.cat([torch.cat(pair) for pair in b.running])
    return {f"{network.__name__}/{name}": value.detach().contiguous() for name, value in found.items()}


def rotated():
    pixels = (torch.arange(3 * 32 * 32).view(3, 32, 32) * 97 % 251 + 4).to(torch.uint8)
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    turned = torch.frombuffer(bytearray(image.rotate(30).tobytes()), dtype=torch.uint8).view(32, 32, 3)
    return {"rotate/image": pixels, "rotate/by30": turned.permute(2, 0, 1).contiguous()}


def main(out):
    tensors = rotated()
    for network in (cnn, resnet18, mobilenetv2):
        tensors.update(results(network))
    save_file(tensors, out)


if __name__ == "__main__":
    main(sys.argv[1])
