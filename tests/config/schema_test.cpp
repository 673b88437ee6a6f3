// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/support.h"
#include "moesaic/config/document.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::usage_of;

struct OptimizerConfig {
  std::string name = "sgd";
  double lr = 0.1;
  double momentum = 0.9;
  std::vector<double> betas = {0.9, 0.999};
  int64_t warmup_steps = 0;
  bool operator==(const OptimizerConfig&) const = default;
};
template <class Fields>
void describe(Fields& f, OptimizerConfig& c) {
  f("name", c.name, "update rule", one_of({"sgd", "adamw"}));
  f("lr", c.lr, "peak learning rate", above(0.0));
  f("momentum", c.momentum, "fraction of the last step", at_least(0), below(1));
  f("betas", c.betas, "decay rates of adamw", between(0, 1));
  f("warmup_steps", c.warmup_steps, "linear warm-up from 0", at_least(0));
}

struct PhaseConfig {
  std::string data;
  std::optional<int64_t> epochs;
  std::optional<int64_t> steps;
  OptimizerConfig optimizer;
  std::map<std::string, double> aux_losses;
  std::optional<OptimizerConfig> router_optimizer;
  bool operator==(const PhaseConfig&) const = default;
};
template <class Fields>
void describe(Fields& f, PhaseConfig& c) {
  f("data", c.data, "dataset to train on", required);
  f("epochs", c.epochs, "how often the data is seen", at_least(1));
  f("steps", c.steps, "or how many updates are made", at_least(1), known_as({"max_steps"}));
  f("optimizer", c.optimizer, "how to update");
  f("aux_losses", c.aux_losses, "weights of the auxiliary losses", at_least(0));
  f("router_optimizer", c.router_optimizer, "for the routers, when other");
}
std::string config_problem(const PhaseConfig& c) {
  return c.epochs && c.steps ? "'epochs' and 'steps' exclude one another" : "";
}

struct RunConfig {
  std::string name = "run";
  int64_t seed = 1;
  bool verbose = false;
  Value model;
  std::vector<PhaseConfig> phases;
  std::vector<std::string> tags;
  std::map<std::string, OptimizerConfig> presets;
  std::vector<bool> mask;
  bool operator==(const RunConfig&) const = default;
};
template <class Fields>
void describe(Fields& f, RunConfig& c) {
  f("name", c.name, "of the run", not_empty);
  f("seed", c.seed, "of everything random", known_as({"random_state"}));
  f("verbose", c.verbose, "say more");
  f("model", c.model, "architecture, read by its family");
  f("phases", c.phases, "what is trained in turn", not_empty);
  f("tags", c.tags, "free labels", one_of({"a", "b", "long-tag"}));
  f("presets", c.presets, "optimizers by name");
  f("mask", c.mask, "any bits");
}

struct Group {
  PhaseConfig phase;
};
template <class Fields>
void describe(Fields& f, Group& c) {
  f("phase", c.phase, "one phase");
}

Value document(std::string_view text) {
  return Document::from_text(text, "recipe.json").root();
}

template <class T>
std::string parse_error(std::string_view text) {
  return usage_of([&] { parse<T>(document(text)); });
}

constexpr const char* kFull = R"({
  "name": "x", "seed": 7, "verbose": true,
  "model": {"name": "vmoe", "layers": [1, 3]},
  "phases": [
    {"data": "fashion", "epochs": 3, "aux_losses": {"importance": 0.1, "gshard": 0},
     "optimizer": {"name": "adamw", "lr": 1e-3, "betas": [0.5]}},
    {"data": "footwear", "router_optimizer": {"lr": 2}, "steps": 1e3}
  ],
  "tags": ["b"], "presets": {"slow": {"lr": 0.5}}, "mask": [true, false]
})";

TEST(Schema, ReadsWhatIsThereAndKeepsDefaults) {
  const auto config = parse<RunConfig>(document(kFull));
  EXPECT_EQ(config.name, "x");
  EXPECT_EQ(config.seed, 7);
  EXPECT_TRUE(config.verbose);
  EXPECT_EQ(config.model.at("layers").items()[1].as_int(), 3);
  ASSERT_EQ(config.phases.size(), 2u);
  EXPECT_EQ(config.phases[0].epochs, 3);
  EXPECT_EQ(config.phases[0].aux_losses.at("importance"), 0.1);
  EXPECT_EQ(config.phases[0].optimizer.name, "adamw");
  EXPECT_EQ(config.phases[0].optimizer.momentum, 0.9);
  EXPECT_EQ(config.phases[0].optimizer.betas, std::vector<double>{0.5});
  EXPECT_FALSE(config.phases[0].router_optimizer);
  EXPECT_EQ(config.phases[1].steps, 1000);
  EXPECT_EQ(config.phases[1].router_optimizer->lr, 2.0);
  EXPECT_EQ(config.phases[1].optimizer, OptimizerConfig{});
  EXPECT_EQ(config.tags, std::vector<std::string>{"b"});
  EXPECT_EQ(config.presets.at("slow").lr, 0.5);
  EXPECT_EQ(config.mask, (std::vector<bool>{true, false}));
  EXPECT_EQ(parse<OptimizerConfig>(document("{}")), OptimizerConfig{});
}

TEST(Schema, RoundTripsThroughJson) {
  const auto config = parse<RunConfig>(document(kFull));
  const nlohmann::ordered_json json = to_json(config);
  EXPECT_EQ(parse<RunConfig>(Value::from_json(json, "x")), config);
  EXPECT_EQ(parse<RunConfig>(document(json.dump(2))), config);
  EXPECT_EQ(to_json(parse<RunConfig>(Value::from_json(json, "x"))).dump(), json.dump());
  EXPECT_EQ(to_json(OptimizerConfig{}).dump(),
            R"({"name":"sgd","lr":0.1,"momentum":0.9,"betas":[0.9,0.999],"warmup_steps":0})");
  EXPECT_TRUE(to_json(PhaseConfig{})["epochs"].is_null());
  const OptimizerConfig bad{.lr = std::numeric_limits<double>::infinity()};
  EXPECT_THAT(usage_of([&] { to_json(bad); }), HasSubstr("which JSON cannot represent"));
}

TEST(Schema, UnknownKeysGetTheNearestName) {
  EXPECT_EQ(parse_error<RunConfig>("{\"phases\": [{\"data\": \"d\",\n  \"optimizer\": {\n"
                                   "      \"learning_rate\": 1}}]}"),
            "recipe.json:3:7: unknown key 'learning_rate' in phases.0.optimizer; did you mean "
            "'lr'?");
  EXPECT_EQ(parse_error<PhaseConfig>(R"({"dta": "x"})"),
            "recipe.json:1:2: unknown key 'dta'; did you mean 'data'?")
      << "before the key that is missing for it";
  EXPECT_EQ(parse_error<OptimizerConfig>(R"({"zzzzzzzz": "x"})"),
            "recipe.json:1:2: unknown key 'zzzzzzzz'; choose one of name, lr, momentum, betas, "
            "warmup_steps");
  EXPECT_THAT(parse_error<RunConfig>(R"({"presets": {"p": {"momentun": 0}}})"),
              HasSubstr("unknown key 'momentun' in presets.p; did you mean 'momentum'?"));
}

TEST(Schema, MissingKeys) {
  EXPECT_EQ(parse_error<PhaseConfig>("{}"), "recipe.json:1:1: missing key 'data'");
  EXPECT_EQ(parse_error<RunConfig>("{\n\"phases\": [ {}]}"),
            "recipe.json:2:13: missing key 'data' in phases.0");
  EXPECT_EQ(parse_error<Group>(" {}"), "recipe.json:1:2: missing key 'data' in phase")
      << "a group that is left out";
}

TEST(Schema, WrongTypes) {
  EXPECT_EQ(parse_error<OptimizerConfig>("{\n\n\n    \"lr\":  \"fast\"}"),
            "recipe.json:4:12: 'lr' must be a number, found the string \"fast\"");
  EXPECT_EQ(parse_error<OptimizerConfig>(R"({"warmup_steps": 1.5})"),
            "recipe.json:1:18: 'warmup_steps' must be an integer, found the number 1.5");
  EXPECT_THAT(parse_error<OptimizerConfig>(R"({"lr": null})"), HasSubstr("found null"));
  EXPECT_THAT(parse_error<OptimizerConfig>(R"({"name": 3})"), HasSubstr("must be a string"));
  EXPECT_THAT(parse_error<OptimizerConfig>(R"({"betas": 3})"), HasSubstr("must be a list"));
  EXPECT_THAT(parse_error<OptimizerConfig>(R"({"betas": [0.1, []]})"),
              StartsWith("recipe.json:1:17: 'betas.1' must be a number, found a list"));
  EXPECT_THAT(parse_error<PhaseConfig>(R"({"data": "d", "aux_losses": {"x": "y"}})"),
              HasSubstr("'aux_losses.x' must be a number"));
  EXPECT_THAT(parse_error<PhaseConfig>(R"({"data": "d", "aux_losses": []})"),
              HasSubstr("'aux_losses' must be an object, found a list"));
  EXPECT_THAT(parse_error<PhaseConfig>(R"({"data": "d", "optimizer": 1})"),
              HasSubstr("'optimizer' must be an object, found the integer 1"));
  EXPECT_THAT(parse_error<PhaseConfig>(R"({"data": "d", "optimizer": true})"),
              EndsWith("'optimizer' must be an object, found true; write {} for its defaults"));
  EXPECT_THAT(parse_error<RunConfig>(R"({"verbose": "yes"})"), HasSubstr("true or false"));
  EXPECT_EQ(parse_error<RunConfig>("[]"), "recipe.json:1:1: must be an object, found a list");
}

TEST(Schema, NumbersBeyondEveryDoubleAreNamedWithTheirSetting) {
  EXPECT_EQ(parse_error<OptimizerConfig>(R"({"lr": 1e400})"),
            "recipe.json:1:8: 'lr' must be a number between -1.8e308 and 1.8e308, found 1e400");
  const auto problem = [](const char* assignment) {
    Document run = Document::from_text(R"({"lr": 1})", "recipe.json");
    run.set(assignment);
    return usage_of([&] { parse<OptimizerConfig>(run.root()); });
  };
  EXPECT_THAT(problem("lr=-1e400"),
              HasSubstr("'lr' must be a number between -1.8e308 and 1.8e308, found the string "));
  EXPECT_THAT(problem("warmup_steps=1e400"),
              HasSubstr("'warmup_steps' must be an integer of 64 bits, found the string "));
  EXPECT_THAT(problem("lr=1e40x"), HasSubstr("'lr' must be a number, found the string "));
}

TEST(Schema, RangesAndChoices) {
  EXPECT_EQ(parse_error<OptimizerConfig>(R"({"lr": -1})"),
            "recipe.json:1:8: 'lr' must be above 0, found -1");
  EXPECT_THAT(parse_error<OptimizerConfig>(R"({"lr": 0})"), HasSubstr("above 0, found 0"));
  EXPECT_THAT(parse_error<OptimizerConfig>(R"({"momentum": 1})"), HasSubstr("below 1, found 1"));
  EXPECT_THAT(parse_error<OptimizerConfig>(R"({"momentum": -0.1})"), HasSubstr("at least 0"));
  EXPECT_THAT(parse_error<OptimizerConfig>(R"({"warmup_steps": -1})"), HasSubstr("at least 0"));
  EXPECT_THAT(parse_error<OptimizerConfig>(R"({"betas": [0.5, 1.5]})"),
              HasSubstr("'betas.1' must be between 0 and 1, found 1.5"));
  EXPECT_THAT(parse_error<PhaseConfig>(R"({"data": "d", "epochs": 0})"),
              HasSubstr("'epochs' must be at least 1, found 0"));
  EXPECT_EQ(parse_error<OptimizerConfig>(R"({"name": "adam"})"),
            "recipe.json:1:10: 'name' cannot be the string \"adam\"; did you mean 'adamw'?");
  EXPECT_THAT(parse_error<RunConfig>(R"({"tags": ["a", "longtag"]})"),
              HasSubstr("'tags.1' cannot be the string \"longtag\"; did you mean 'long-tag'?"));
  EXPECT_THAT(parse_error<RunConfig>(R"({"name": ""})"), HasSubstr("'name' must not be empty"));
  EXPECT_THAT(parse_error<RunConfig>(R"({"phases": []})"), HasSubstr("'phases' must not be empty"));
  EXPECT_EQ(parse<OptimizerConfig>(document(R"({"momentum": 0, "betas": [0, 1]})")).momentum, 0);
}

TEST(Schema, SettingsThatExcludeOneAnother) {
  EXPECT_EQ(parse_error<RunConfig>(R"({"phases": [{"data": "d", "epochs": 1, "steps": 1}]})"),
            "recipe.json:1:13: 'epochs' and 'steps' exclude one another in phases.0");
}

TEST(Schema, OverridesAreCheckedLikeTheFile) {
  Document run = Document::from_text(kFull, "recipe.json");
  run.set("phases.0.optimizer.lr=0.25");
  run.set("phases.1.optimizer.name=adamw");
  run.set("phases.0.epochs=null");
  const auto config = parse<RunConfig>(run.root());
  EXPECT_EQ(config.phases[0].optimizer.lr, 0.25);
  EXPECT_EQ(config.phases[1].optimizer.name, "adamw");
  EXPECT_FALSE(config.phases[0].epochs);

  for (const auto& [argument, problem] :
       {std::pair("phases.0.optimizer.momentun=0",
                  "unknown key 'momentun' in phases.0.optimizer; did you mean 'momentum'?"),
        std::pair("phases.1.optimiser.lr=1",
                  "unknown key 'optimiser' in phases.1; did you mean 'optimizer'?"),
        std::pair("seed=soon", "'seed' must be an integer, found the string \"soon\"")}) {
    Document changed = run;
    changed.set(argument);
    EXPECT_EQ(usage_of([&] { parse<RunConfig>(changed.root()); }),
              fmt::format("argument '{}': {}", argument, problem));
  }
}

TEST(Schema, NamesStartWithTheGivenPath) {
  EXPECT_THAT(usage_of([] { parse<OptimizerConfig>(document(R"({"lr": 0})"), "model.head"); }),
              HasSubstr("'model.head.lr' must be above 0"));
}

TEST(Schema, HelpTellsEverySetting) {
  const HelpRows rows = help_rows<RunConfig>();
  // name lr momentum betas warmup_steps, three times (twice in a phase, once in the presets), and
  // those of the run and of a phase
  EXPECT_EQ(rows.size(), 8 + 6 + 3 * 5);
  const std::string help = help_text(rows);
  for (const char* text :
       {"seed  integer, 1 by default\n    of everything random\n",
        "phases.N.data  string, required\n    dataset to train on\n",
        "phases.N.optimizer  object, an object by default\n    how to update\n",
        "phases.N.optimizer.lr  number, 0.1 by default; above 0\n    peak learning rate\n",
        "presets.<name>.name  string, \"sgd\" by default; sgd | adamw\n",
        "phases.N.epochs  integer or null, null by default; at least 1\n",
        "tags  list of string, [] by default", "aux_losses  map to number, {} by default; at"}) {
    EXPECT_THAT(help, HasSubstr(text));
  }
}

TEST(Schema, HelpOfASettingOrAGroupIsFoundByItsPath) {
  const HelpRows rows = help_rows<RunConfig>();
  const auto keys = [&](const std::string& path) {
    std::vector<std::string> found;
    for (const auto& row : help_rows_at(rows, path)) found.push_back(row.key);
    return found;
  };
  const std::vector<std::string> lr = {"phases.N.optimizer.lr"};
  for (const char* path : {"phases.optimizer.lr", "phases.0.optimizer.lr", "phases.N.optimizer.lr",
                           "phases.finetune.optimizer.lr"}) {
    EXPECT_EQ(keys(path), lr) << path;
  }
  EXPECT_EQ(keys("phases.optimizer").size(), 6U);
  EXPECT_EQ(keys("seed"), std::vector<std::string>{"seed"});
  EXPECT_EQ(keys("random_state"), std::vector<std::string>{"seed"});
  EXPECT_EQ(keys("epochs"), std::vector<std::string>{"phases.N.epochs"});
  EXPECT_EQ(keys("losses"), std::vector<std::string>{"phases.N.aux_losses"});
  EXPECT_EQ(usage_of([&] { keys("phases.optimiser.lr"); }),
            "unknown key 'phases.optimiser.lr'; did you mean 'phases.N.optimizer.lr'?");
  EXPECT_EQ(usage_of([&] { keys("phases.epo"); }),
            "unknown key 'phases.epo'; did you mean 'phases.N.epochs'?");
  EXPECT_EQ(usage_of([&] { keys("zzzzzzzz"); }),
            "unknown key 'zzzzzzzz'; moesaic list settings lists all");
}

TEST(Schema, AKeyWithoutItsGroupsIsOfferedWithThem) {
  const std::string wrong = "recipe.json:1:2: unknown key ";
  for (const auto& [key, meant] :
       {std::pair("lr", "phases.N.optimizer.lr"),
        std::pair("warm", "phases.N.optimizer.warmup_steps"),
        std::pair("momentun", "phases.N.optimizer.momentum"), std::pair("sed", "seed"),
        std::pair("max_steps", "phases.N.steps"), std::pair("random_state", "seed")}) {
    EXPECT_EQ(parse_error<RunConfig>(fmt::format("{{\"{}\": 1}}", key)),
              fmt::format("{}'{}'; did you mean '{}'?", wrong, key, meant));
  }
  EXPECT_THAT(parse_error<RunConfig>(R"({"phases": [{"data": "x", "momentum": 0}]})"),
              HasSubstr("'momentum' in phases.0; did you mean 'phases.0.optimizer.momentum'?"));
  const HelpRows rows = help_rows<RunConfig>();
  EXPECT_EQ(help_rows_matching(rows, "optimizer.lr").at(0).key, "phases.N.optimizer.lr");
  EXPECT_TRUE(help_rows_matching(rows, "zzzz").empty());
  EXPECT_TRUE(help_rows_matching(rows, "seed").empty()) << "it has no group";
}

struct ManyWords {
  double rate = 0.5;
  int64_t unit = 1, size = 3;
};
template <class Fields>
void describe(Fields& f, ManyWords& c) {
  f("rate", c.rate,
    "a meaning of so many words that no line of a hundred columns holds it together with the key "
    "and the default, so that it is cut",
    common);
  f("unit", c.unit,
    "a first phrase; a second one of so many words that no line of a hundred columns holds both, "
    "so "
    "that it is left out",
    common);
  f("size", c.size, "of no interest");
}

TEST(Schema, ShortHelpHasALineForEachCommonSetting) {
  const std::string text = common_help(help_rows<ManyWords>());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_THAT(text, ::testing::StartsWith("  rate  0.5  a meaning of so many words"));
  EXPECT_THAT(text, ::testing::EndsWith(" ...\n  unit  1    a first phrase\n"));
  EXPECT_LE(text.find('\n'), 100U);
}

struct ImageConfig {
  Size2d size = 8;
};
template <class Fields>
void describe(Fields& f, ImageConfig& c) {
  f("size", c.size, "height and width", between(1, 100));
}

struct Habits {
  Interval save = Interval::from_steps(5), look = Interval::from_epochs(1);
};
template <class Fields>
void describe(Fields& f, Habits& c) {
  f("save", c.save, "time between saves", between(1, 100));
  f("look", c.look, "time between looks", between(0, 100));
}

TEST(Schema, IntervalsAreNumbersOrNameTheirUnit) {
  const auto habits = [](const std::string& text) {
    return parse<Habits>(Document::from_text(text, "a.json").root());
  };
  using Unit = Interval::Unit;
  EXPECT_EQ(habits("{}").look, Interval::from_epochs(1));
  const Habits plain = habits(R"({"save": 7, "look": 2})");
  EXPECT_EQ(plain.save.unit, Unit::steps);
  EXPECT_EQ(plain.look.unit, Unit::epochs);
  EXPECT_EQ(to_json(plain).dump(), R"({"save":7,"look":"2 epochs"})");
  const Habits named = habits(R"({"save": "1 epoch", "look": "20 steps"})");
  EXPECT_EQ(named.save.count, 1);
  EXPECT_EQ(named.save.unit, Unit::epochs);
  EXPECT_EQ(to_json(named).dump(), R"({"save":"1 epoch","look":"20 steps"})");
  EXPECT_EQ(to_json(habits(R"({"save": "7 steps", "look": "2 epochs"})")), to_json(plain));
  EXPECT_EQ(to_json(habits(R"({"look": "0 steps"})")).dump(), R"({"save":5,"look":0})");
  for (const char* wrong : {R"("20 seconds")", R"("steps")", R"("-1 steps")", R"("2")", R"("")"}) {
    EXPECT_THAT(usage_of([&] { habits(fmt::format(R"({{"look": {}}})", wrong)); }),
                HasSubstr("a.json:1:10: 'look' must be a text such as \"20 steps\" or \"1 epoch\", "
                          "found "));
  }
  EXPECT_THAT(usage_of([&] { habits(R"({"save": "7"})"); }),
              HasSubstr("\"1 epoch\", or a number of steps, found "));
  EXPECT_THAT(usage_of([&] { habits(R"({"save": "0 steps"})"); }), HasSubstr("between 1 and 100"));
}

TEST(Schema, HelpNamesTheUnitOfABareNumber) {
  const HelpRows rows = help_rows<Habits>();
  EXPECT_EQ(rows.at(0).type, "\"N steps\", \"N epochs\" or a number of steps");
  EXPECT_EQ(rows.at(1).type, "\"N steps\", \"N epochs\" or a number of epochs");
}

TEST(Schema, ABareNumberOfEpochsIsReadWithOneWarningThatNamesItsUnit) {
  const auto said_of = [](const std::string& text) {
    return test::said_by([&] {
      for (int time = 0; time < 2; ++time) {
        parse<Habits>(Document::from_text(text, "older.json").root());
      }
    });
  };
  EXPECT_EQ(said_of(R"({"save": 7, "look": 3})"),
            "warning: older.json:1:21: 'look' is the bare number 3, which is read as \"3 epochs\" "
            "as in earlier versions; write \"3 epochs\", or \"3 steps\" if steps are meant\n");
  for (const char* known : {R"({"look": "3 epochs"})", R"({"look": "3 steps"})", R"({"look": 0})",
                            R"({"save": 7})", "{}"}) {
    EXPECT_EQ(said_of(known), "") << known;
  }
}

TEST(Interval, IsCompletedByStepsOfTheRunOrEpochsOfThePhase) {
  const Interval three = Interval::from_steps(3), two = Interval::from_epochs(2);
  EXPECT_TRUE(three.is_completed_by(1, 6, 1, 4));
  EXPECT_FALSE(three.is_completed_by(1, 7, 2, 4));
  EXPECT_TRUE(three.is_completed_by(5, 7, 2, 4));
  EXPECT_TRUE(two.is_completed_by(1, 100, 8, 4));
  EXPECT_FALSE(two.is_completed_by(1, 96, 4, 4));
  EXPECT_FALSE(two.is_completed_by(1, 96, 8, 0));
  EXPECT_FALSE(Interval::from_steps(0).is_completed_by(1, 6, 1, 4));
}

TEST(Schema, SidesAreOneNumberOrTwo) {
  const auto sides = [](const std::string& text) {
    return parse<ImageConfig>(Document::from_text(text, "p.json").root(), "model").size;
  };
  EXPECT_EQ(sides("{}"), Size2d(8, 8));
  EXPECT_EQ(sides(R"({"size": 5})"), Size2d(5));
  EXPECT_EQ(sides(R"({"size": [5, 7]})"), Size2d(5, 7));
  EXPECT_EQ(to_json(ImageConfig{{5, 7}}).dump(), R"({"size":[5,7]})");
  EXPECT_EQ(to_json(ImageConfig{{5, 5}}).dump(), R"({"size":5})");
  const auto refused = [&](const std::string& text) { return usage_of([&] { sides(text); }); };
  EXPECT_THAT(
      refused(R"({"size": [5]})"),
      HasSubstr("p.json:1:10: 'model.size' must be an integer or [height, width], found [5]"));
  EXPECT_THAT(refused(R"({"size": [5, 0]})"), HasSubstr("between 1 and 100"));
  EXPECT_THAT(refused(R"({"size": "big"})"), HasSubstr("must be an integer"));
  EXPECT_THAT(help_text(help_rows<ImageConfig>()), HasSubstr("integer or [height, width]"));
}

}  // namespace
}  // namespace moesaic
