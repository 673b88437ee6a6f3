// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"

namespace moesaic {

struct EmbeddingsConfig {
  std::string train, test;
  std::string file;
  double test_fraction = 0.2;
  int64_t seed = 1;
  int64_t width = 0;
};
template <class Fields>
void describe(Fields& f, EmbeddingsConfig& c) {
  f("train", c.train, "safetensors file of the train split");
  f("test", c.test, "safetensors file of the test split");
  f("file", c.file, "in place of both: one file, split at random");
  f("test_fraction", c.test_fraction, "of the texts of 'file' that are the test split",
    between(0.0001, 0.9999));
  f("seed", c.seed, "seed of that split", at_least(0));
  f("width", c.width, "numbers that an embedding has to have; 0: any", between(0, 1048576));
}
/// Checks that there is one file, or one for each split, named without folders.
ConfigProblem config_problem(const EmbeddingsConfig& config);

/// Returns the name of the file with `split`, "train" or "test".
const std::string& embeddings_file(const EmbeddingsConfig& config, const std::string& split);

}  // namespace moesaic
