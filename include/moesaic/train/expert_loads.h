// SPDX-License-Identifier: Apache-2.0
// Loads of a run's experts: counted on the network's device, written with the metrics, and checked
// for starved experts.
#pragma once

#include <array>

#include "moesaic/train/evaluate.h"

namespace moesaic {

/// What the lines of metrics say of each kept expert, in the layers of "routing" that have it.
inline constexpr std::array kExpertMetrics = {"load", "dropped", "router_norm"};

/// Mean load of an MoE layer's experts over some steps.
struct LayerLoads {
  int64_t block = 0;
  std::vector<int64_t> kept;  ///< Ids of the experts.
  std::vector<double> load;   ///< Fraction of the layer's rows of each.
  /// Fraction dropped of the tokens that selected each expert; empty where there is no capacity, or
  /// experts are merged.
  std::vector<double> dropped;
};

/// Counts the rows of a network's experts in forward passes of training. Observes all MoE layers;
/// nothing waits for the device.
class ExpertLoadMeter {
 public:
  /// Observes the MoE layers of `model` until it is destroyed.
  explicit ExpertLoadMeter(const Model& model);
  ExpertLoadMeter(const ExpertLoadMeter&) = delete;
  ExpertLoadMeter& operator=(const ExpertLoadMeter&) = delete;
  ~ExpertLoadMeter();

  /// Returns the names of what take() returns, [V]; take_loads() finds them among metrics.
  const std::vector<std::string>& names() const { return names_; }
  /// Returns the counts since the last call, [V] float64 on the network's device: rows of each
  /// expert and, with a capacity, tokens that selected it. Means of the counts over steps and
  /// processes give the loads of all.
  at::Tensor take();

 private:
  struct Counts {
    at::Tensor rows_K, selected_K;  ///< [K] int64; `selected_K` is undefined without drops.
  };

  std::vector<MoEBlock> blocks_;
  std::vector<Counts> counts_;  ///< Of each block.
  std::vector<std::string> names_;
};

/// Takes the counts of ExpertLoadMeter out of metrics; layers are in the order of their blocks.
std::vector<LayerLoads> take_loads(std::map<std::string, double>& metrics);

/// Returns [{"layer", "kept", "load", "dropped"}, ...], rounded to four digits.
Json to_json(const std::vector<LayerLoads>& layers);

/// Returns the routing of an evaluation for a line of metrics: to_json() without its rows for each
/// class, and "router_norm" [K], the norms of the router's weights of the kept experts.
Json routing_line(const Evaluation& evaluation, const Model& model);

/// Finds experts whose load stays below a fraction of a uniform one.
class StarvedExpertDetector {
 public:
  /// `share` is the fraction of a uniform load, `steps` the number of steps; with 0 steps no expert
  /// counts as starved.
  StarvedExpertDetector(double share, int64_t steps) : share_(share), steps_(steps) {}

  /// Adds mean loads over so many steps. Returns a message for each expert that has now been below
  /// the share for the number of steps; another one follows only after it was above.
  std::vector<std::string> add(const std::vector<LayerLoads>& layers, int64_t steps);

 private:
  double share_;
  int64_t steps_;
  std::map<std::pair<int64_t, int64_t>, int64_t> below_;  ///< Steps, by block and expert.
};

}  // namespace moesaic
