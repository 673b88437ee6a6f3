// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/prune_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <iterator>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/data/source.h"
#include "moesaic/models/registry.h"
#include "moesaic/nn/module_state.h"
#include "moesaic/ops/device.h"

namespace moesaic {
namespace {

void check_pretrained_is_given(const PruneCheckpointOptions& options) {
  const std::string& criterion = options.prune.criterion;
  const bool by_plan = options.searched_plan || options.plan;
  const bool compares = !by_plan && criterion_of(criterion).needs_pretrained;
  if (compares && options.pretrained.empty()) {
    fail_usage(
        "prune: criterion '{}' compares with the pretrained network: give --pretrained, or a "
        "criterion that looks at this network alone, such as --criterion router-magnitude (its "
        "weights) or reap (images)",
        criterion);
  }
}

std::string change(const char* name, double before, double after, int precision) {
  const double percent = before > 0.0 ? 100.0 * (after - before) / before : 0.0;
  return fmt::format("{:<12}{:>16.{}f} -> {:>16.{}f}  ({:+.1f} %)\n", name, before, precision,
                     after, precision, percent);
}

/// Returns the kept experts of a layer, with a bar between its groups.
std::string kept_text(const PruneLayerPlan& layer) {
  std::string text;
  int64_t group = 0;
  for (const int64_t id : layer.kept) {
    for (; group < id * layer.num_groups / layer.num_experts; ++group) text += " |";
    text += fmt::format("{}{}", text.empty() ? "" : " ", id);
  }
  return text;
}

int64_t experts_of(const Model& model) {
  int64_t experts = 0;
  for (const MoEBlock& block : model.moe_blocks()) experts += std::ssize(block.layer->kept());
  return experts;
}

/// Returns how a layer chooses, for messages.
std::string routing_text(const RouteOptions& rule) {
  if (rule.is_expert_choice()) return "experts select tokens";
  if (rule.kind == RoutingKind::threshold) return "a threshold selects experts";
  return fmt::format("a token selects {} experts", rule.k);
}

std::string routing_problem(const Model& finetuned, const Model& pretrained) {
  const std::vector<MoEBlock> blocks = finetuned.moe_blocks(), others = pretrained.moe_blocks();
  for (size_t i = 0; i < std::min(blocks.size(), others.size()); ++i) {
    const std::string here = routing_text(blocks[i].layer->options().rule);
    const std::string there = routing_text(others[i].layer->options().rule);
    if (here != there) {
      return fmt::format("in block {} {}, not: {}", blocks[i].block, there, here);
    }
  }
  return "";
}

/// Whether a parameter may be of both networks; `other` is null where one of them lacks it.
bool agrees(const std::string& name, const at::Tensor& own, const at::Tensor* other) {
  if (!is_expert_parameter(name)) return other != nullptr && own.sizes() == other->sizes();
  if (other == nullptr) return true;  // Numbered experts may be more here.
  if (own.dim() != other->dim()) return false;
  return own.dim() == 0 || own.sizes().slice(1) == other->sizes().slice(1);
}

std::string shape_problem(const Model& finetuned, const Model& pretrained) {
  const auto before = pretrained.named_parameters();
  for (const auto& item : finetuned.named_parameters()) {
    const bool is_replacement = item.key().ends_with(nn::kReplacementOutputsKey);
    if (is_replacement || finetuned.may_differ_from_pretrained(item.key())) continue;
    const at::Tensor* other = before.find(item.key());
    if (agrees(item.key(), item.value(), other)) continue;
    if (other == nullptr) return fmt::format("'{}' is missing", item.key());
    return fmt::format("'{}' is {}, not {}", item.key(), c10::str(other->sizes()),
                       c10::str(item.value().sizes()));
  }
  return "";
}

/// Checks that the configuration of the pruned network says all that it has.
void check_rebuilds(const Model& pruned) {
  const TensorMap wanted = state_of(pruned), found = state_of(*meta_copy(pruned));
  for (const auto& [name, tensor] : wanted) {
    if (found.contains(name)) continue;
    fail_usage("prune: networks of the family '{}' cannot store '{}'; choose --replace nothing",
               pruned.config().at("name").get<std::string>(), name);
  }
}

/// Calls `use` with name and handle of each parameter and buffer.
void for_each_tensor(const Model& model, const auto& use) {
  for (const auto& item : model.named_parameters()) use(item.key(), item.value());
  for (const auto& item : model.named_buffers()) use(item.key(), item.value());
}

const void* identity(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl();
}

/// Returns the plan of a block, null where the plan does not change it.
const PruneLayerPlan* layer_of(const PrunePlan& plan, const MoEBlock& block) {
  const auto layer = std::ranges::find(plan.layers, block.block, &PruneLayerPlan::block);
  return layer == plan.layers.end() ? nullptr : &*layer;
}

/// Returns what removed experts leave behind in a layer where `old` was left before, by `removed`.
at::Tensor left_behind(const MoEBlock& block, const PrunePlan& plan, const at::Tensor& old,
                       const std::vector<int64_t>& removed) {
  const at::Tensor& replacement_outputs = block.layer->replacement_outputs;
  if (old.defined() && old.sizes() == replacement_outputs.sizes()) return old;
  const at::Tensor& means_Eo = layer_of(plan, block)->means_Eo;
  return nn::merge_replacement_outputs(means_Eo, removed, old, block.layer->kept())
      .to(replacement_outputs.scalar_type());
}

/// Returns the weights of a block's present experts in those that they are merged into, undefined
/// where none is.
at::Tensor merging_weights(const MoEBlock& block, const PrunePlan& plan) {
  const PruneLayerPlan* layer = layer_of(plan, block);
  const bool merges =
      plan.replace == kMerge && layer != nullptr && layer->kept.size() < block.layer->kept().size();
  return merges ? plan_merge(block, *layer).weights_PP : at::Tensor();
}

/// Applies the plan to the shape of a network and returns what makes each tensor of the pruned
/// network of `values`, those of before, which must outlive it: one at a time, so that neither
/// network need be in memory. Pruning keeps the handles of tensors, but not all of their names.
TensorMaker prune_shape(Model& shape, const TensorMap& values, const PrunePlan& plan) {
  struct Source {
    at::Tensor shape, slots, made, weights_PP;
    std::string name = {};  ///< Before.
  };
  std::map<const void*, Source> sources;
  for_each_tensor(shape, [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) sources[identity(tensor)].name = name;
  });
  struct Layer {
    std::vector<int64_t> present, removed;
    at::Tensor left, weights_PP;
  };
  std::vector<Layer> before;
  for (const MoEBlock& block : shape.moe_blocks()) {
    const at::Tensor& left = block.layer->replacement_outputs;
    before.push_back({block.layer->kept(), block.layer->removed(),
                      left.defined() ? values.at(sources.at(identity(left)).name) : left,
                      merging_weights(block, plan)});
  }
  apply_plan(shape, plan);
  auto old = before.begin();
  for (const MoEBlock& block : shape.moe_blocks()) {
    // Where each kept expert is among those that were present.
    const at::Tensor slots = at::searchsorted(at::tensor(old->present, at::kLong),
                                              at::tensor(block.layer->kept(), at::kLong));
    for (const at::Tensor& tensor : nn::tensors_of(*block.layer->experts)) {
      sources[identity(tensor)].slots = slots;
      sources[identity(tensor)].weights_PP = old->weights_PP;
    }
    if (const at::Tensor& replacement_outputs = block.layer->replacement_outputs;
        replacement_outputs.defined()) {
      sources[identity(replacement_outputs)].made =
          left_behind(block, plan, old->left, old->removed);
    }
    ++old;
  }
  std::map<std::string, Source> named;
  for_each_tensor(shape, [&](const std::string& name, const at::Tensor& tensor) {
    named[name] = sources[identity(tensor)];
    named[name].shape = tensor;
  });
  return [&values, named = std::move(named)](const std::string& name) {
    const Source& source = named.at(name);
    if (source.made.defined()) return source.made;
    const at::Tensor& value = values.at(source.name);
    if (value.sizes() == source.shape.sizes()) return value;
    const bool merges = source.weights_PP.defined();
    return (merges ? nn::average_experts(value, source.weights_PP) : value)
        .index_select(0, source.slots);
  };
}

/// Returns the phase and the step that a run had come to.
std::pair<int64_t, int64_t> progress_of(const Checkpoint& checkpoint) {
  const auto number = [&](const char* key) {
    const Json value = value_at(checkpoint.state, key);
    return value.is_number_integer() ? value.get<int64_t>() : 0;
  };
  return {number("/phase_index"), number("/step")};
}

/// Returns the index of the phase that a phase was fine-tuned after: the last one before it that
/// trained on other data, else the last that trained.
std::optional<size_t> phase_before(const Json& phases, size_t index) {
  std::optional<size_t> before, elsewhere;
  for (size_t i = 0; i < index; ++i) {
    if (value_at(phases[i], "/steps") == 0 || !value_at(phases[i], "/name").is_string()) continue;
    before = i;
    if (value_at(phases[i], "/data") != value_at(phases[index], "/data")) elsewhere = i;
  }
  return elsewhere ? elsewhere : before;
}

/// Returns whether the run of `later` began with `first`, or with the run that it is of.
bool began_with(const Checkpoint& later, const Checkpoint& first) {
  const Json init = value_at(later.config, "/run/init");
  std::error_code ignored;
  for (fs::path folder = fs::absolute(first.folder); folder.has_relative_path();
       folder = folder.parent_path()) {
    const bool run = folder == fs::absolute(first.folder) || fs::exists(folder / "metrics.jsonl");
    if (run && init.is_string() && fs::equivalent(init.get<std::string>(), folder, ignored)) {
      return true;
    }
  }
  return false;
}

/// Refuses a pretrained network that lacks experts of the fine-tuned one: the two are probably
/// swapped, and changes the other way round would remove the experts that matter most.
void check_has_experts(const fs::path& finetuned, const Model& after, const fs::path& pretrained,
                       const Model& before) {
  const std::vector<MoEBlock> blocks = after.moe_blocks(), others = before.moe_blocks();
  for (size_t i = 0; i < std::min(blocks.size(), others.size()); ++i) {
    const std::vector<int64_t> own = blocks[i].layer->kept(), former = others[i].layer->kept();
    const auto &after_moe = blocks[i].layer->options(), &before_moe = others[i].layer->options();
    if (blocks[i].block != others[i].block || std::ranges::includes(former, own)) continue;
    if (after_moe.num_experts != before_moe.num_experts) continue;  // The criteria refuse it.
    if (former.size() < own.size()) {
      fail_usage(
          "prune: --pretrained {} has {} in block {}, --finetuned {} has {}; a pretrained network "
          "has at least as many; swap the two?",
          pretrained.string(), count_text(std::ssize(former), "expert"), blocks[i].block,
          finetuned.string(), own.size());
    }
    std::vector<int64_t> missing;
    std::ranges::set_difference(own, former, std::back_inserter(missing));
    fail_usage(
        "prune: --pretrained {} lacks {} {} in block {}, which --finetuned {} has; choose a "
        "pretrained network that is not pruned",
        pretrained.string(), missing.size() == 1 ? "expert" : "experts", fmt::join(missing, " "),
        blocks[i].block, finetuned.string());
  }
}

/// Warns where the checkpoints' runs or the networks themselves say that the pretrained one came
/// later. What a checkpoint was made by tells nothing of pruning: a network that is trained after
/// it was pruned is still the smaller one.
void warn_of_order(const Checkpoint& finetuned, const Model& after_shape,
                   const Checkpoint& pretrained, const Model& before_shape) {
  const auto same = [&](const char* path) {
    return value_at(finetuned.config, path) == value_at(pretrained.config, path);
  };
  const bool of_one_run = !value_at(finetuned.config, "/run/name").is_null() && same("/run/name") &&
                          same("/run/seed") && same("/run/init") && same("/run/phases");
  const auto before = progress_of(pretrained), after = progress_of(finetuned);
  const int64_t experts_before = experts_of(before_shape), experts_after = experts_of(after_shape);
  std::string why;
  if (of_one_run && before > after) {
    why = fmt::format("they are of steps {} and {} of a run", before.second, after.second);
  } else if (began_with(pretrained, finetuned)) {
    why = "the latter is init of the former";
  } else if (experts_before < experts_after) {
    why = fmt::format("they have {} and {} experts, and pruning removes experts", experts_before,
                      experts_after);
  }
  if (why.empty()) return;
  log_warning(
      "prune: --pretrained {} looks newer than --finetuned {}: {}; swap the two if their order is "
      "a mistake",
      pretrained.folder.string(), finetuned.folder.string(), why);
}

/// Returns the rows per token that `count` gives all experts of each layer, less the removed ones'.
RowsPerToken rows_of_kept(const Model& model, const auto& count) {
  RowsPerToken rows;
  for (const auto& [block, layer, unused] : model.moe_blocks()) {
    const int64_t kept = std::ssize(layer->kept()), all = layer->options().num_experts;
    const bool is_rerouted = layer->options().rule.pruned == PrunedSelection::reroute;
    const bool computes_all = is_rerouted || !layer->merged_into.empty();
    const double fraction =
        computes_all ? 1.0 : static_cast<double>(kept) / static_cast<double>(all);
    rows[block] = fraction * count(layer->router->evaluation_rule(), model.tokens_per_image(),
                                   is_rerouted ? kept : all);
  }
  return rows;
}

}  // namespace

RowsPerToken even_rows_per_token(const Model& model) {
  return rows_of_kept(model, nn::rows_per_token);
}

Footprint footprint(const Model& model) {
  const RowsPerToken of_capacity = rows_of_kept(model, nn::capacity_rows_per_token);
  return {.num_parameters = model.num_parameters(),
          .bytes = static_cast<int64_t>(bytes_of(state_of(model))),
          .flops = model.flops_per_image(even_rows_per_token(model)),
          .capacity_flops = model.flops_per_image(of_capacity)};
}

fs::path find_pretrained(const fs::path& run_or_checkpoint, bool trust) {
  const Checkpoint newest = load_newest_checkpoint(
      run_or_checkpoint,
      {.verify = false, .load_model = false, .load_optimizer = false, .trust = trust});
  const Json phases = value_at(newest.config, "/run/phases"),
             init = value_at(newest.config, "/run/init");
  const auto index = static_cast<size_t>(progress_of(newest).first);
  if (phases.is_array() && index < phases.size()) {
    fs::path folder = fs::absolute(newest.folder).parent_path();
    if (folder.filename() != "checkpoints") folder /= "checkpoints";  // It is RUN/best.
    const auto before = phase_before(phases, index);
    const fs::path found =
        before ? folder / phases[*before].at("name").get<std::string>() : fs::path();
    if (before && path_exists(found / "MANIFEST.json")) return found;
  }
  const fs::path start = init.is_string() ? init.get<std::string>() : "";
  return !start.empty() && path_exists(start) ? start : fs::path();
}

std::string pretrained_problem(const Model& finetuned, const Model& pretrained) {
  if (pretrained.moe_blocks().empty()) {
    return "it is dense, so it has no routers or experts to compare with; choose a criterion that "
           "needs no pretrained network, such as reap or router-magnitude";
  }
  const auto family = [](const Model& model) {
    return model.config().at("name").get<std::string>();
  };
  if (family(finetuned) != family(pretrained)) {
    return fmt::format("its family is '{}', not '{}'", family(pretrained), family(finetuned));
  }
  if (finetuned.num_members() != pretrained.num_members()) {
    return fmt::format("it has {} members, not {}", pretrained.num_members(),
                       finetuned.num_members());
  }
  const std::string problem = routing_problem(finetuned, pretrained);
  return problem.empty() ? shape_problem(finetuned, pretrained) : problem;
}

bool needs_images(const PruneCheckpointOptions& options) {
  const PruneOptions& prune = options.prune;
  if (prune.replace && replacement_needs_images(*prune.replace)) return true;
  if (!options.plan) return criterion_of(prune.criterion).needs_images;
  return !prune.replace && replacement_needs_images(options.plan->replace);
}

PrunePlan plan_checkpoint(const PruneCheckpointOptions& options, const Checkpoint& checkpoint,
                          const Model& shape) {
  check_pretrained_is_given(options);
  const PruneOptions& prune = options.prune;
  if (prune.replace) {
    const std::string problem = replacement_problem(shape, *prune.replace);
    if (!problem.empty()) fail_usage("prune: --replace {}: {}", *prune.replace, problem);
  }
  PrunePlan plan;
  if (options.plan) {
    plan = *options.plan;
    if (prune.replace) plan.replace = prune.replace;
    const std::string problem = plan_problem(shape, plan);
    if (!problem.empty()) fail_usage("{}: {}", plan.where, problem);
  } else if (!shape.moe_blocks().empty()) {
    check_keep(shape, prune.keep);
  }
  std::optional<ExpertStatistics> use;
  if (needs_images(options)) {
    if (!options.calibrate) fail_usage("prune: calibration images are needed; set calibrate");
    const std::shared_ptr<Model> model = model_of(checkpoint);
    model->to(at::Device(options.device));
    use = options.calibrate(checkpoint, *model);
  }
  if (options.plan) {
    complete_plan(plan, shape, use ? &*use : nullptr);
    return plan;
  }
  PruneInput input{.finetuned = shape,
                   .statistics = use ? &*use : nullptr,
                   .finetuned_values = &checkpoint.model};
  if (options.pretrained.empty()) return plan_pruning(input, prune);
  const Checkpoint before = load_newest_checkpoint(options.pretrained, options.load_options());
  const std::shared_ptr<Model> before_shape = meta_model_of(before);
  // What changed between two networks that are not one means nothing.
  const std::string problem = pretrained_problem(shape, *before_shape);
  if (!problem.empty()) {
    fail_usage("prune: --pretrained {} is another network than --finetuned: {}",
               options.pretrained.string(), problem);
  }
  if (criterion_of(prune.criterion).needs_pretrained) {
    check_has_experts(options.finetuned, shape, options.pretrained, *before_shape);
  }
  warn_of_order(checkpoint, shape, before, *before_shape);
  input.pretrained = before_shape.get();
  input.pretrained_values = &before.model;
  return plan_pruning(input, prune);
}

PruneCheckpointResult prune_checkpoint(const PruneCheckpointOptions& options) {
  check_device(options.device);
  check_pretrained_is_given(options);
  if (!options.dry_run) check_new_folder(options.out, "prune");
  Checkpoint checkpoint = load_newest_checkpoint(options.finetuned, options.load_options());
  check_outside_trained_images(options.out, checkpoint.config);
  const std::shared_ptr<Model> shape = meta_model_of(checkpoint);
  PruneCheckpointResult result;
  result.plan =
      options.searched_plan ? *options.searched_plan : plan_checkpoint(options, checkpoint, *shape);
  result.before = footprint(*shape);
  const int64_t experts = experts_of(*shape);
  const TensorMaker make = prune_shape(*shape, checkpoint.model, result.plan);
  if (experts_of(*shape) == experts) {
    log_warning(
        "prune: all {} experts are kept, so the network is unchanged; a fraction to keep is "
        "one of the experts before any pruning",
        experts);
  }
  check_rebuilds(*shape);
  if (options.plan || options.searched_plan) warn_of_ties(result.plan);  // Else it was said.
  result.after = footprint(*shape);
  if (options.dry_run) return result;

  checkpoint.config["model"] = shape->config();
  const int64_t phase = progress_of(checkpoint).first;  // It tells which loss trained the network.
  checkpoint.state = {{"pruned", to_json(result.plan)}, {"phase_index", phase}};
  save_checkpoint(options.out, {checkpoint.config, checkpoint.state, state_of(*shape), {}}, make);
  return result;
}

std::string describe(const PruneCheckpointResult& result) {
  std::string text =
      fmt::format("{:>5}  {:>9}  kept by {}\n", "block", "experts", result.plan.criterion);
  for (const PruneLayerPlan& layer : result.plan.layers) {
    text += fmt::format("{:>5}  {:>9}  {}\n", layer.block,
                        fmt::format("{} of {}", layer.kept.size(), layer.num_experts),
                        kept_text(layer));
  }
  const Footprint &before = result.before, &after = result.after;
  text += change("parameters", static_cast<double>(before.num_parameters),
                 static_cast<double>(after.num_parameters), 0);
  text += change("bytes", static_cast<double>(before.bytes), static_cast<double>(after.bytes), 0);
  text += change("MFLOPs", before.flops / 1e6, after.flops / 1e6, 2);
  text += "MFLOPs are for one image whose tokens spread evenly over the experts.\n";
  return text;
}

}  // namespace moesaic
