# SPDX-License-Identifier: Apache-2.0
"""Networks of timm and transformers with random weights, for the import of dense vision transformers.

    vit_peers.py make FOLDER    saves each network with its config.json, images and outputs; prints a line for each:
                                its name and the options of the import
    vit_peers.py check FOLDER   compares what moesaic predicted, FOLDER/NAME/found.safetensors, with these outputs
"""
import importlib.util
import pathlib
import sys

SIDE, RESIZED, PATCH, WIDTH, DEPTH, HEADS, CLASSES = 32, 48, 8, 32, 2, 4, 5
TOLERANCE = 1e-5


def randomized(model, seed):
    """Gives every parameter values that matter: initial scales of 1e-5 and zeros would hide mistakes."""
    import torch
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_factor = "norm" in name and name.endswith("weight") or name.endswith(("gamma", "lambda1"))
            parameter.normal_(1.0 if is_factor else 0.0, 0.15, generator=random)
    return model.eval()


def timm_networks():
    """Yields name, network, options of the import."""
    import timm
    sizes = {"img_size": SIDE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS}
    for name, more in {
            "vit_tiny_patch16_224": {}, "deit_tiny_patch16_224": {}, "deit_tiny_distilled_patch16_224": {},
            "deit3_small_patch16_224": {}, "vit_small_patch14_dinov2": {"num_classes": 0},
            "vit_small_patch14_reg4_dinov2": {"num_classes": 0}, "vit_base_patch16_siglip_224": {"num_classes": 0},
            "vit_base_patch16_siglip_gap_224": {}, "vit_little_patch16_reg4_gap_256": {},
            "vit_medium_patch16_gap_240": {"qkv_bias": False}}.items():
        options = {**sizes, "num_classes": CLASSES, **more}
        yield name, timm.create_model(name, **options), ["--num-heads", str(HEADS)]
    for name in ("vit_tiny_patch16_224", "vit_small_patch14_reg4_dinov2"):  # positions with and without a class
        model = timm.create_model(name, **sizes, num_classes=CLASSES)
        yield f"{name}_{RESIZED}", model, ["--num-heads", str(HEADS), "--image-size", str(RESIZED)]


def transformers_networks():
    """Yields name, network, options of the import."""
    import transformers as hf
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "image_size": SIDE,
             "patch_size": PATCH}
    labels, mlp = {"num_labels": CLASSES}, {"intermediate_size": 48}
    vision = {**sizes, **mlp}
    text = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": HEADS, "intermediate_size": 48,
            "vocab_size": 50}
    registers = hf.Dinov2WithRegistersConfig(**sizes, num_register_tokens=3)
    for model in (
            hf.ViTForImageClassification(hf.ViTConfig(**sizes, **mlp, **labels)),
            hf.ViTModel(hf.ViTConfig(**sizes, **mlp)),
            hf.DeiTForImageClassification(hf.DeiTConfig(**sizes, **mlp, **labels)),
            hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**sizes, **mlp, **labels)),
            hf.Dinov2ForImageClassification(hf.Dinov2Config(**sizes, **labels)),
            hf.Dinov2WithRegistersModel(registers),
            hf.SiglipVisionModel(hf.SiglipVisionConfig(**vision)),
            hf.SiglipForImageClassification(hf.SiglipConfig(vision_config=vision, text_config=text, **labels))):
        yield type(model).__name__, model, []


def save_timm(model, folder):
    from timm.models import save_for_hf
    save_for_hf(model, folder, safe_serialization=True)


def save_transformers(model, folder):
    model.save_pretrained(folder)


def output_of(model, images):
    out = model(images)
    for key in ("logits", "pooler_output"):
        if getattr(out, key, None) is not None:
            return getattr(out, key)
    return out


def make(folder):
    import torch
    from safetensors.torch import save_file
    for package, networks, save in (("timm", timm_networks, save_timm),
                                    ("transformers", transformers_networks, save_transformers)):
        if importlib.util.find_spec(package) is None:
            print("missing", package)
            continue
        for seed, (name, model, options) in enumerate(networks()):
            randomized(model, seed)
            save(model, folder / name)
            side = SIDE
            if "--image-size" in options:
                side = RESIZED
                model.set_input_size(img_size=side)
            images = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(seed))
            with torch.no_grad():
                outputs = output_of(model, images)
            save_file({"images": images}, folder / name / "images.safetensors")
            save_file({"outputs": outputs.contiguous()}, folder / name / "wanted.safetensors")
            print("network", name, *options)


def check(folder):
    from safetensors.torch import load_file
    worst, compared = 0.0, 0
    for wanted in sorted(folder.glob("*/wanted.safetensors")):
        outputs = load_file(wanted)["outputs"]
        found = load_file(wanted.with_name("found.safetensors"))["logits"]
        error = ((found - outputs).abs().max() / outputs.abs().max().clamp(min=1)).item()
        print(f"{wanted.parent.name}: {error:.1e}")
        worst, compared = max(worst, error), compared + 1
    print(f"{compared} networks, worst error {worst:.1e}")
    assert worst <= TOLERANCE and compared >= 10 * (importlib.util.find_spec("timm") is not None)


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](pathlib.Path(sys.argv[2]))
