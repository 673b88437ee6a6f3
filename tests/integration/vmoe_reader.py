# SPDX-License-Identifier: Apache-2.0
import json

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


def vmoe(folder, images):
    """The logits of images [B, C, H, W] by a V-MoE without capacities, exported to safetensors in a folder."""
    config, w = json.load(open(f"{folder}/config.json")), load_file(f"{folder}/model.safetensors")
    encoder, moe, constants = config["encoder"], config["encoder"]["moe"], config["constants"]
    dense = lambda x, name: F.linear(x, w[name + ".weight"], w[name + ".bias"])
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], constants["layer_norm_eps"])
    gelu = lambda x: F.gelu(x, approximate=constants["gelu"])
    x = F.conv2d(images, w["embedding.weight"], w["embedding.bias"], w["embedding.weight"].shape[2:]).flatten(2).mT
    x = torch.cat([w["cls"].expand(len(x), 1, -1), x], 1) + w["position_embedding"]
    for i in range(encoder["num_layers"]):
        name = f"blocks.{i}."
        query, key, value = (part.unflatten(2, (encoder["num_heads"], -1)).transpose(1, 2)
                             for part in dense(norm(x, name + "norm1"), name + "attention.qkv").chunk(3, 2))
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + dense(mixed, name + "attention.out")
        y = norm(x, name + "norm2")
        if i not in moe["layers"]:
            x = x + dense(gelu(dense(y, name + "mlp.fc1")), name + "mlp.fc2")
            continue
        gates, chosen = F.linear(y, w[name + "moe.router.weight"]).softmax(-1).topk(moe["router"]["num_selected_experts"])
        w1, b1, w2, b2 = (w[name + "moe.experts." + part] for part in ("w1", "b1", "w2", "b2"))
        for row, expert in enumerate(moe["kept_experts"].get(str(i), range(moe["num_experts"]))):
            gate = (gates * (chosen == expert)).sum(-1, keepdim=True)
            x = x + gate * (gelu(y @ w1[row] + b1[row]) @ w2[row] + b2[row])
    return dense(norm(x, "norm")[:, 0], "head")
