// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/named_settings.h"

#include "base/support.h"
#include "moesaic/config/document.h"
#include "moesaic/config/schema.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::usage_of;

struct Steps {
  double rate = 0.5;
};
template <class Fields>
void describe(Fields& f, Steps& c) {
  f("rate", c.rate, "of a step", above(0.0));
}

struct Solve {
  int64_t rank = 2, max_rank = 4;
};
template <class Fields>
void describe(Fields& f, Solve& c) {
  f("rank", c.rank, "of the solution", at_least(1));
  f("max_rank", c.max_rank, "that is possible", at_least(1));
}
std::string config_problem(const Solve& c) {
  return c.rank > c.max_rank ? "'rank' is above 'max_rank'" : "";
}

struct PhaseOfAKind {
  std::string name = "first";
  NamedSettings kind;
};
template <class Fields>
void describe(Fields& f, PhaseOfAKind& c) {
  f("name", c.name, "of the phase");
  f.choice("kind", c.kind, {NamedSettings("steps", Steps{}), NamedSettings("solve", Solve{})},
           "what it does");
}

PhaseOfAKind read_phase(const std::string& json) {
  return parse<PhaseOfAKind>(Document::from_text(json, "phase.json").root());
}

TEST(NamedSettings, ReadsTheSettingsOfTheNamedAlternative) {
  EXPECT_EQ(read_phase(R"({"kind": "solve", "rank": 3})").kind.as<Solve>().rank, 3);
  EXPECT_EQ(read_phase(R"({"rate": 0.25})").kind.as<Steps>().rate, 0.25)
      << "the first is the default";
}

TEST(NamedSettings, IsWrittenBesideTheOtherKeysAndReadBack) {
  const auto written = to_json(read_phase(R"({"kind": "solve", "rank": 3})"));
  EXPECT_EQ(written.dump(), R"({"name":"first","kind":"solve","rank":3,"max_rank":4})");
  EXPECT_EQ(to_json(read_phase(written.dump())), written);
}

TEST(NamedSettings, CopiesAreDeep) {
  const PhaseOfAKind first = read_phase(R"({"kind": "solve"})");
  PhaseOfAKind second = first;
  second.kind.as<Solve>().rank = 1;
  EXPECT_EQ(first.kind.as<Solve>().rank, 2);
  EXPECT_EQ(first.kind.find<Steps>(), nullptr);
  EXPECT_THROW(first.kind.as<Steps>(), Error);
}

TEST(NamedSettings, RefusesWhatTheAlternativeDoesNotKnow) {
  EXPECT_THAT(usage_of([] { read_phase(R"({"kind": "sove"})"); }),
              AllOf(HasSubstr("phase.json:1:10"), HasSubstr("did you mean 'solve'?")));
  EXPECT_THAT(usage_of([] { read_phase(R"({"kind": "solve", "rate": 0.25})"); }),
              HasSubstr("unknown key 'rate'; it is a setting of kind 'steps'"));
  EXPECT_THAT(usage_of([] { read_phase(R"({"rate": 0})"); }), HasSubstr("phase.json:1:10"));
  EXPECT_THAT(usage_of([] { read_phase(R"({"kind": "solve", "rank": 5})"); }),
              HasSubstr("'rank' is above 'max_rank'"));
}

struct Warmup {
  int64_t warmup = 0;
};
template <class Fields>
void describe(Fields& f, Warmup& c) {
  f("warmup", c.warmup, "number of steps");
}

struct ParamGroup {
  Warmup schedule;
};
template <class Fields>
void describe(Fields& f, ParamGroup& c) {
  f("schedule", c.schedule, "of a group");
}

struct Nested {
  std::vector<ParamGroup> groups;
  Warmup schedule;
};
template <class Fields>
void describe(Fields& f, Nested& c) {
  f("groups", c.groups, "further ones");
  f("schedule", c.schedule, "of the rate");
}

struct Flat {
  int64_t warmup = 0, tilt = 0;
};
template <class Fields>
void describe(Fields& f, Flat& c) {
  f("warmup", c.warmup, "number of steps");
  f("tilt", c.tilt, "of the line");
}

struct NestedOrFlat {
  NamedSettings kind;
};
template <class Fields>
void describe(Fields& f, NestedOrFlat& c) {
  f.choice("kind", c.kind, {NamedSettings("nested", Nested{}), NamedSettings("flat", Flat{})},
           "what it does");
}

TEST(NamedSettings, OffersTheShortestKeyOfItsOwnBeforeThatOfAnotherAlternative) {
  const auto error = [](const std::string& json) {
    return usage_of([&] { parse<NestedOrFlat>(Document::from_text(json, "a.json").root()); });
  };
  const std::string meant = "unknown key 'warmup'; did you mean 'schedule.warmup'?";
  EXPECT_THAT(error(R"({"warmup": 3})"), HasSubstr(meant));
  EXPECT_THAT(error(R"({"kind": "nested", "warmup": 3})"), HasSubstr(meant));
  EXPECT_THAT(error(R"({"warm": 3})"), HasSubstr("did you mean 'schedule.warmup'?"));
  EXPECT_THAT(error(R"({"tilt": 3})"), HasSubstr("it is a setting of kind 'flat'"));
}

}  // namespace
}  // namespace moesaic
