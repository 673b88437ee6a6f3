// SPDX-License-Identifier: Apache-2.0
// A message is one line: where, what is wrong, the nearest valid choice.
#include <algorithm>

#include "integration/program.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

class Messages : public ProgramTest {};

TEST_F(Messages, SayWhereWhatAndWhatToDo) {
  const std::string none = text_path("nowhere"), out = text_path("new");
  const std::string makes = none + ": no such file or folder; moesaic train makes a run, moesaic ";
  struct Case {
    Strings command;
    std::string text;
  };
  for (const auto& [command, text] : std::vector<Case>{
           {{"train"}, "error: train: the recipe is missing; moesaic list recipes lists some"},
           {{"eval", none}, makes},
           {{"inspect", none}, makes},
           {{"prune", none, "--keep", "1", "--dry-run", "--criterion", "aimer"}, makes},
           {{"prune", none, "--dry-run"},
            "no option gives the number of experts to keep; give one "},
           {{"prune", none, "--keep", "1", "--criterion", "reep"},
            "--criterion: cannot be 'reep'; did you mean 'reap'?"},
           {{"prune", none, "--keep", "1", "--criterion", "routr-norm"},
            "--criterion: cannot be 'routr-norm'; did you mean 'router-norm-change'?"},
           {{"prune", none, "--keep", "1.5", "--dry-run"},
            "--keep '1.5': a fraction must be above"},
           {{"prune", none, "--keep", "1"}, "prune: --out is missing; name a new folder, or give "},
           {{"predict", none}, "predict: the images are missing; name files or folders after "},
           {{"bench", "nowhere"},
            "bench: 'nowhere' is neither a benchmark nor a run or checkpoint; name the folder of "
            "one, or choose one of "},
           {{"bench", "operators", "--rows", "foo*"},
            "bench: --rows: 'operators' has no row like 'foo*'; choose one of cpu/*"},
           {{"compare", none, "--rows", "a,b"},
            none + ": no such file; moesaic reproduce writes results.json into its --out"},
           {{"import", "vmoe", text_path("pre"), "--out", out},
            "pre.index: no such file; a checkpoint has the files PREFIX.index and PREFIX.data-"},
           {{"import", "vmoe", "pre", "--out", out, "--image-size", "3y4"},
            "--image-size: must be a side S or HxW, height x width, of 1 to 65536 pixels, found "
            "'3y4'"},
           {{"data", "pack", "nofolder/", "--out", out},
            "folder: 'nofolder/': no such folder; moesaic list datasets lists "},
           {{"export", none, "--format", "torchscript", "--out", text_path("x.onnx")},
            "x.onnx' ends as files of format onnx do; name another file, or give --format onnx"},
           {{"predict", none, "https://u:SECRET@x.y/a.jpg"}, "https://...@x.y/a.jpg"},
           {{"reproduce", "quickstart", "--scale", "fast"},
            "--scale: cannot be 'fast'; choose one of paper, quick"},
           {{"train", smoke_recipe(), "batch=3", "--dry-run"},
            "argument 'batch=3': unknown key 'batch'; did you mean phases.pretrain.batch_size or "},
           {{"train", recipe("clusters/experiments/table1.json")},
            "table1.json: an experiment, not a recipe; run it by: "},
           {{"train", smoke_recipe(), "classes=3", "--dry-run"},
            "unknown key 'classes'; did you mean model.num_classes?"},
           {{"train", "--help", "phases.batch"}, "did you mean 'phases.N.batch_size'?"},
           {{"train", "--help", "phases.recover"}, "did you mean 'phases.N."},
           {{"train", "--help", "objective"},
            "unknown key 'objective'; did you mean 'phases.N.loss', with the values of moesaic "
            "list objectives?"},
           {{"train", "--help", "recipes"},
            "unknown key 'recipes'; no setting of a run has such values; moesaic list recipes "
            "lists them"},
           {{"train", "--help", "zzzzzzzz"},
            "unknown key 'zzzzzzzz'; moesaic list settings lists all"}}) {
    expect_usage_error(command, text);
  }
}

TEST_F(Messages, OfHelpKnowTheMembersThatObjectsTakeBesidesSettings) {
  for (const auto& [word, text] : std::vector<std::pair<const char*, const char*>>{
           {"preset", "preset, in \"model\": name of a network (moesaic list models)"},
           {"model.preset", "preset, in \"model\": "},
           {"extends", "extends, in any object: JSON file over which "}}) {
    const auto help = must_succeed({"train", "--help", word});
    EXPECT_THAT(help.out, StartsWith(text));
    EXPECT_EQ(std::count(help.out.begin(), help.out.end(), '\n'), 1) << help.out;
  }
}

TEST_F(Messages, OfHugeArgumentsFitOnAScreen) {
  const std::string huge(60'000, 'x');
  for (const Strings& command : std::vector<Strings>{
           {"eval", huge}, {"eval", "x", "--" + huge}, {"train", smoke_recipe(), huge + "=1"}}) {
    const ProgramResult result = run_program(command);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_LT(result.err.size(), 1500U);
  }
}

}  // namespace
}  // namespace moesaic::testing
