// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "command_line.h"
#include "moesaic/base/progress.h"
#include "moesaic/base/signal.h"
#include "moesaic/import/vit/import.h"
#include "moesaic/import/vmoe/import.h"
#include "moesaic/models/vmoe/config.h"

namespace moesaic::tools {
namespace {

struct ImportArguments {
  std::string format;
  ImportVMoEOptions options;
  ImportVitOptions vit;  ///< What vmoe's options have too is set in those.
  std::string image_size;
  bool json = false;
};

constexpr const char *kVmoeFormat = "vmoe", *kVitFormat = "vit";
constexpr const char* kVmoeGroup = "Options of vmoe";

/// Refuses options of the other format.
void check_format(const CLI::App& verb, const std::string& format) {
  const std::vector<std::string> formats = {kVmoeFormat, kVitFormat};
  if (format != kVmoeFormat && format != kVitFormat) {
    fail_usage("import: unknown format '{}'; {}", format, did_you_mean(format, formats));
  }
  const std::vector<const char*> foreign =
      format == kVitFormat ? std::vector<const char*>{"--model-config", "--rules"}
                           : std::vector<const char*>{"--num-heads", "--experts", "--layers", "--k",
                                                      "--expert-noise"};
  for (const char* option : foreign) {
    if (verb.count(option) == 0) continue;
    fail_usage("import: {} is for the format {}", option,
               format == kVitFormat ? kVmoeFormat : kVitFormat);
  }
  if (verb.count("--experts") > 0) return;
  for (const char* option : {"--layers", "--k", "--expert-noise"}) {
    if (verb.count(option) > 0) fail_usage("import: {} needs --experts N", option);
  }
}

/// Fetches what a name stands for. A signal ends that at once; the next call goes on with it.
void fetch_named(ImportArguments& arguments) {
  ImportVMoEOptions& options = arguments.options;
  check_new_folder(options.out, "--out");
  if (arguments.format == kVmoeFormat) return fetch_released(options);
  options.prefix = fetch_hub_model(options.prefix);
}

/// Imports as the format says and returns what is printed.
std::string imported(const ImportArguments& arguments) {
  const auto text = [&](const auto& result) {
    return arguments.json ? to_json(result).dump(2) + "\n" : describe(result);
  };
  if (arguments.format == kVmoeFormat) return text(import_vmoe(arguments.options));
  const ImportVMoEOptions& given = arguments.options;
  ImportVitOptions options = arguments.vit;
  options.from = given.prefix;
  options.out = given.out;
  options.num_classes = given.num_classes;
  options.image_size = given.image_size;
  options.seed = given.seed;
  options.progress = given.progress;
  return text(import_vit(options));
}

/// Min number of bytes for a progress bar.
constexpr uint64_t kLarge = uint64_t{256} << 20, kMegabyte = 1'000'000;

/// Parses "S" or "HxW", which check_sides() has validated.
Size2d sides_of(const std::string& text) {
  const size_t cross = text.find('x');
  if (cross == std::string::npos) return std::stoll(text);
  return {std::stoll(text.substr(0, cross)), std::stoll(text.substr(cross + 1))};
}

std::string check_sides(const std::string& text) {
  const CLI::Validator side = whole_number(1, static_cast<int64_t>(kMaxImage));
  const size_t cross = text.find('x');
  for (std::string part :
       {text.substr(0, cross),
        cross == std::string::npos ? std::string("1") : text.substr(cross + 1)}) {
    if (side(part).empty()) continue;
    return fmt::format("must be a side S or HxW, height x width, of 1 to {} pixels, found '{}'",
                       static_cast<int64_t>(kMaxImage), text);
  }
  return "";
}

void import_checkpoint(ImportArguments arguments) {
  if (!arguments.image_size.empty()) arguments.options.image_size = sides_of(arguments.image_size);
  fetch_named(arguments);
  const StopSignal stop;
  Progress bar({.label = "import", .unit = "MB"});
  arguments.options.progress = [&](uint64_t done, uint64_t total) {
    stop.check();
    if (total < kLarge) return;
    bar.show(static_cast<int64_t>(done / kMegabyte), static_cast<int64_t>(total / kMegabyte));
    if (done == total) bar.finish();
  };
  std::cout << imported(arguments);
}

void add_vit_options(CLI::App& verb, ImportVitOptions& options) {
  Upcycling& upcycling = options.upcycling;
  verb.option_defaults()->group("Options of vit");
  constexpr auto kMost = static_cast<int64_t>(kMaxWidth);
  add_value(verb, "--num-heads", options.num_heads, "N", whole_number(1, kMost),
            "number of attention heads (that of its config.json, else heads of width 64)");
  add_value(verb, "--experts", upcycling.num_experts, "N",
            whole_number(1, static_cast<int64_t>(kMaxExperts)),
            "number of experts, copies of the MLP, in each of --layers");
  add_value(verb, "--layers", upcycling.layers, "N,...",
            whole_number(0, static_cast<int64_t>(kMaxLayers) - 1),
            "indices of the blocks (from 0) that get experts, separated by commas")
      ->delimiter(',');
  add_value(verb, "--k", upcycling.num_selected_experts, "N",
            whole_number(1, static_cast<int64_t>(kMaxExperts)),
            "number of experts for each token, with --experts")
      ->capture_default_str();
  add_value(verb, "--expert-noise", upcycling.noise, "X", number(0.0, 1e3),
            "standard deviation of noise on the experts' weights, relative to the standard "
            "deviation of "
            "each weight tensor; 0: experts begin equal, and outputs are the dense network's")
      ->capture_default_str();
}

}  // namespace

void add_import(CLI::App& app, int& /*exit_code*/) {
  constexpr const char* kNotes =
      "With --classes, arrays named 'head' are dropped. With --classes or --image-size, the\n"
      "position embedding is resized and routers are reshaped for an ensemble, as the released\n"
      "recipes do.\n"
      "--rules: the first rule whose pattern (RE2's syntax: no backreferences, no look-around) is\n"
      "found in an array's name applies to the array. New names begin with params/, and an empty\n"
      "replacement drops the array. The transformation vit_zoom resizes the position embedding,\n"
      "reshape gives the array the shape of the network's parameter, and expand_tile AXIS REPEATS\n"
      "copies a dense MLP to all experts.\n"
      "vit: ViT, DeiT, DeiT3, DINOv2 and SigLIP in safetensors; --experts makes a mixture that\n"
      "begins with the dense network's outputs.";
  const auto arguments = std::make_shared<ImportArguments>();
  ImportVMoEOptions& options = arguments->options;
  CLI::App* verb =
      add_verb(app, "import", "Convert another project's checkpoint.",
               "import vmoe pretrained --model-config model.json --out checkpoints/start", kNotes);
  verb->add_option("format", arguments->format,
                   "format of the checkpoint; vmoe: google-research/vmoe; vit: a dense vision "
                   "transformer of timm or Hugging Face")
      ->required()
      ->type_name("FORMAT");
  add_text(*verb, "prefix", options.prefix, "PREFIX",
           "files of the checkpoint; vmoe: prefix of PREFIX.index and its shards, or the name of a "
           "released one (moesaic list checkpoints); vit: a .safetensors file or its folder, or "
           "hf://OWNER/NAME[@REVISION] of Hugging Face")
      ->required();
  add_text(*verb, "--out", options.out, "DIR", "folder of the new checkpoint, missing or empty")
      ->required();
  add_text(*verb, "--model-config", options.model_config, "FILE",
           "configuration of the model as JSON, with google-research/vmoe's names or moesaic's; "
           "optional where no block has experts, and for released checkpoints")
      ->group(kVmoeGroup);
  add_value(*verb, "--classes", options.num_classes, "N",
            whole_number(1, static_cast<int64_t>(kMaxWidth)),
            "number of classes of a new head of zeros, for fine-tuning (no new head)");
  add_text(*verb, "--image-size", arguments->image_size, "S or HxW",
           "image size for fine-tuning, one number or height x width, to which the position "
           "embedding is resized")
      ->check(check_sides);
  add_text(*verb, "--rules", options.rules, "FILE",
           "mapping of parameters, as JSON: [[pattern, replacement, transformation...], ...]; "
           "--model-config then describes the new network")
      ->group(kVmoeGroup);
  verb->add_option("--seed", options.seed, "seed of parameters with random initial values")
      ->check(whole_number(0, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  verb->add_flag("--json", arguments->json, "print one JSON document: the result");
  add_vit_options(*verb, arguments->vit);
  verb->callback([arguments, verb] {
    require_single_process("import");
    check_format(*verb, arguments->format);
    import_checkpoint(*arguments);
  });
}

}  // namespace moesaic::tools
