# SPDX-License-Identifier: Apache-2.0
"""Lists of what tools/frozen.py records: networks, verbs, experiments and wrong commands."""

MOE, ROUTER = "model.encoder.moe.", "model.encoder.moe.router."
CAPACITY = ROUTER + "dispatcher.capacity"
BY_EXPERT = {ROUTER + "name": "NoisyTopItemsPerExpertRouter"}
PHASE = {"name": "pretrain", "data": "PICTURES", "batch_size": 24, "steps": 6, "optimizer": {"name": "adamw", "lr": 0.01}}
FINETUNE = {**PHASE, "name": "finetune", "optimizer": {"name": "sgd", "lr": 0.02}, "on_entry": {"new_head": True}}
PRUNE = {**PHASE, "name": "prune", "on_entry": {"prune": {"criterion": "importance", "keep": 0.5, "replace": "mean"}}}
GREY = {"phases.0.preprocess.channels": 1}
RECIPE = {
    "name": "pictures", "seed": 3, "log_every": 1, "evaluate_batch_size": 12,
    "model": {"name": "vmoe", "image_size": 32, "channels": 3, "patch_size": 8, "hidden_size": 16, "num_classes": 3, "encoder": {
        "num_layers": 2, "num_heads": 2, "mlp_dim": 32, "moe": {"layers": [1], "num_experts": 4, "router": {"num_selected_experts": 2}}}},
    "phases": [PHASE],
}
# Networks and phases beside the smoke recipes: what each changes in RECIPE. A key with dots is given on the command line.
NETWORKS = {
    "plain": {}, "phases": {"phases": [PHASE, FINETUNE]}, "pruned": {"phases": [PHASE, PRUNE]}, "dense": {MOE + "layers": []},
    "losses": {ROUTER + "noise_std": 1.0, "phases.0.aux_losses": {"importance": 0.01, "load": 0.01, "gshard": 0.01}},
    "noise": {ROUTER + "noise_std": 1.0, ROUTER + "noise": "always"},
    "top1": {ROUTER + "num_selected_experts": 1}, "all": {ROUTER + "num_selected_experts": 4, ROUTER + "gate": "softmax_selected"},
    "capacity": {CAPACITY + "_factor": 0.7, ROUTER + "gate": "softmax_selected"},
    "priority": {CAPACITY + "_factor": 0.5, ROUTER + "dispatcher.batch_priority": True},
    "groups": {CAPACITY + "_factor": 0.9, MOE + "group_size": 30, ROUTER + "dispatcher.evaluation_capacity_factor": 2.0},
    "num_group_images": {CAPACITY + "_factor": 1.1, MOE + "num_group_images": 5, CAPACITY + "_rounding": "round",
                     CAPACITY + "_multiple_of": 1},
    "rows": {CAPACITY: 50},
    "kept": {MOE + "kept_experts": {"1": [0, 2, 3]}},
    "rerouted": {MOE + "kept_experts": {"1": [0, 2, 3]}, ROUTER + "pruned_selection": "reroute", CAPACITY + "_factor": 0.9},
    "expert_choice": {**BY_EXPERT, ROUTER + "num_selected_tokens": 9, MOE + "group_size": 34, ROUTER + "gate": "softmax_selected"},
    "expert_choice_tokens": {**BY_EXPERT, CAPACITY + "_factor": 1.0, ROUTER + "gate": "softmax_tokens",
                             MOE + "kept_experts": {"1": [1, 2]}},
    "expert_choice_groups": {**BY_EXPERT, CAPACITY + "_factor": 1.0, MOE + "num_group_images": 1, ROUTER + "noise_std": 1.0,
                             ROUTER + "dispatcher.bfloat16": True},
    "adaptive": {ROUTER + "name": "adaptive", ROUTER + "threshold": 0.0, ROUTER + "gate": "one"},
    "bfloat16": {"precision": "bfloat16"},
    # Products that are large enough for kernels of their own.
    **{name: {"precision": precision, "model.hidden_size": 192, "model.encoder.mlp_dim": 768}
       for name, precision in (("wide", "float32"), ("wide_bfloat16", "bfloat16"))},
    "recomputed": {"activation_checkpointing": True, "phases.0.gradient_accumulation_steps": 2, MOE + "dropout_rate": 0.1, "model.encoder.dropout_rate": 0.1},
    "heads": {"model.classifier": "map", "model.encoder.attention_qk_norm": True, "model.representation_size": 8,
              "model.encoder.position_emb.name": "sincos2d"},
    "augmented": {"phases.0.augment": {"flip": True, "max_shift": 2, "crop": {}, "rand_augment": {}, "mixup": 0.2, "blur": {}},
                  "phases.0.label_smoothing": 0.1, "phases.0.clip_norm": 1.0, "phases.0.schedule": {"name": "cosine", "warmup_steps": 2}},
    "sigmoid": {"phases.0.loss": "sigmoid", "phases.0.optimizer": {"name": "sgd", "momentum": 0.9, "lr": 0.01, "l2": 0.001}},
    "e3": {MOE + "ensemble_size": 2, "model.name": "e3", "phases.0.loss": "ensemble_softmax"},
    **{expert: {"model": {"name": "image-moe", "expert": expert, "num_experts": 2, "num_classes": 3, "width": 0.0625}}
       for expert in ("cnn", "resnet18", "mobilenetv2")},
    "wrn-pmoe": {"model": {"name": "wrn-pmoe", "widen_factor": 0.25, "num_classes": 3}},
    "gru": {**GREY, "model": {"name": "gru", "hidden_size": 8, "num_classes": 3}},
}
VERBS = ("list", "inspect", "eval", "predict", "prune", "import", "data", "bench", "help")
BENCHMARKS = ("operators", "vmoe")  # the others are of the papers' own steps
# Settings that shorten experiments whose quick scale takes too long here.
SWEEP = ["recover.steps=3", "recover.schedule.warmup_steps=1", "throughput.num_rounds=2"] + [
    f"train.phases.{phase}.{key}" for phase in ("pretrain", "finetune") for key in ("epochs=null", "steps=10", "schedule.warmup_steps=2")]
UPCYCLED = [*SWEEP, "train.phases.dense.steps=10", "train.phases.dense.schedule.warmup_steps=2"]
REDUCED = {
    "pruning/e3-cifar10": [*SWEEP, "num_runs=1"], "pruning/vmoe-cifar10": [*SWEEP, "num_runs=1"],
    "pruning/vmoe-cifar10-exclude-blocks": [*SWEEP, "num_runs=2"],
    "vmoe/cifar10-scratch": UPCYCLED, "vmoe/cifar10-scratch-top1": UPCYCLED, "vmoe/cifar10-tools": UPCYCLED,
    "quickstart": ["throughput.num_rounds=2", "train.phases.pretrain.steps=20", "train.phases.finetune.steps=10"],
    "pmoe/wrn-cifar10": ["num_runs=1", "max_steps=8"], "pmoe/wrn-vehicles": ["num_runs=1", "max_steps=8"],
}
FULL_SIZE = "minutes for a step of its networks; networks/cnn, resnet18 and mobilenetv2 are small ones, plans/experiments has its plan"
EXCLUDED = {
    **{f"clusters/{name}": FULL_SIZE for name in ("table2", "table2-code", "table2-small")},
    "pruning/vmoe-cifar100": "its quick scale is that of pruning/vmoe-cifar10",
    "pruning/vmoe-imagenet": "its quick scale is that of pruning/vmoe-cifar10-exclude-blocks",
    "pruning/e3-cifar100": "its quick scale is that of pruning/e3-cifar10",
}
# Commands that are refused, one a line: RUN is a run that is there, SMOKE the smoke recipe of V-MoE.
WRONG = """
trane
--jsn
train
data
data verfy x
list modles
bench operatros
bench operators --rows none*
eval nowhere
inspect nowhere
predict nowhere x.png
eval RUN --data mnits
eval RUN --split tset
eval RUN --batch-size 0
eval RUN --device tpu
eval RUN --precision float8
eval x y
predict RUN --input nowhere --output x
predict RUN nowhere.png
prune --kep 4
prune RUN --keep 9 --out x
prune RUN --keep 0 --out x
prune RUN --keep 2 --criterion router-norm-chnage --out x
prune RUN --keep 2 --max-drop 0.1 --out x
prune RUN --out x
export RUN --format onnx --out x
export RUN --format torchscript --out RUN
import vmoe nowhere --out x
import tf nowhere --out x
reproduce table1
reproduce clusters/table1 --scale tiny
reproduce clusters/table1 rnus=2
reproduce pruning/vmoe-cifar10 keep=[9] --dry-run
reproduce clusters/table1 train.phases.0.lss=x --dry-run
reproduce clusters/table1 probes=["test_acuracy"] --dry-run
train nowhere.json
train SMOKE --out RUN
train SMOKE --out x --rsume
train --help phases.optimiser
train --help model vmeo
train SMOKE sead=1
train SMOKE seed=-1
train SMOKE seed=x
train SMOKE model.name=vmeo
train SMOKE model={"preset":"vmoe/b15"}
train SMOKE phases=[]
train SMOKE phases.0.kind=gradeint
train SMOKE phases.0.loss=sofmax
train SMOKE phases.0.optimizer.name=adem
train SMOKE phases.0.steps=-1
train SMOKE phases.0.data=./none.json
train SMOKE phases.nine.steps=1
train SMOKE model.encoder.moe.router.gate=softmx
train SMOKE model.encoder.moe.router.num_selected_experts=9
train SMOKE model.encoder.moe.layers=[7]
train SMOKE model.encoder.num_heads=3
train SMOKE model.encoder.moe.router.dispatcher.capacity_factor=-1
train SMOKE phases.prune.on_entry.prune.keep=99
train SMOKE phases.0.loss=hinge
train SMOKE phases.0.kind=spherical_sgd
train SMOKE phases.0.kind=patch_sgd
train SMOKE phases.0.kind=gated_em
train SMOKE phases.0.kind=ridge
train SMOKE phases.0.kind=router_ascent
train SMOKE phases.0.kind=pattern_sgd
train SMOKE phases.0.kind=gated_signs
"""
