// SPDX-License-Identifier: Apache-2.0
// What the pruning paper's theory adds to the library's registries.
#include "moesaic/data/format.h"
#include "moesaic/models/family.h"
#include "parts.h"

namespace moesaic {

[[maybe_unused]] const bool kPruningTheoryRegistered =
    families().add(kPatternMoE, family_of<PatternMoE, PatternMoEConfig>(
                                    "one layer of expert choice on patterns (pruning paper's "
                                    "theory, section 4.2)")) &&
    dataset_formats().add(
        "patterns",
        generated_format(
            "patterns",
            "generated tokens of the pruning paper's theory, one of which determines the class",
            pattern_inputs)) &&
    add_pattern_sgd("pattern_sgd",
                    "stochastic gradient descent in the pruning paper's theory, by its formulas "
                    "(algorithm 1)") &&
    probes().add("lemmas", {"proficiency, gates, neurons and norms of the expert "
                            "farthest from lemmas 4.1, 4.2 and 4.4 (pruning paper)",
                            lemmas_metrics, measure_lemmas}) &&
    probes().add("norms", {"norms of routers and neurons by expert (pruning paper, figure 3a)",
                           norms_metrics, measure_norms}) &&
    probes().add("neurons",
                 {"products of single neurons and routers with the data's known directions, of "
                  "the experts whose routers have the largest and the smallest norm",
                  neurons_metrics, measure_neurons}) &&
    probes().add("proficiency", {"proficiency of routers: fraction of class-deciding "
                                 "patterns that they select, and their norms",
                                 proficiency_metrics, measure_proficiency});

}  // namespace moesaic
