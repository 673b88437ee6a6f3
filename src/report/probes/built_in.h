// SPDX-License-Identifier: Apache-2.0
// Built-in probes, one file each.
#pragma once

#include <string>

#include "moesaic/report/probe.h"

namespace moesaic {

/// Returns the probe of a metric of an evaluation (Evaluation::metrics) on a split, called
/// "<split>_<metric>".
Probe evaluation_probe(const std::string& split, const std::string& metric);

/// Returns the probe of the number of updates.
Probe steps_probe();

/// Returns the probe of dispatch entropy in nats (eq. 6.1 of the clusters paper) of the training
/// data in the last MoE layer, by groups if the data has any, else by classes.
Probe entropy_probe();
/// Returns the probe of that entropy's counts: training examples by group or class, and expert.
Probe dispatch_probe();
/// Returns the probe of the fraction of training rows per kept expert of the last MoE layer.
Probe load_probe();

/// Returns the probe of products of the model's weights with the known directions of its data: for
/// weights "a" and directions "b" a table "a_b" of [experts, directions], in which an expert of one
/// vector w has <w, v> and one of several the max of |<w, v>|, and the number "largest_a_b", the
/// max magnitude in that table.
Probe alignment_probe();

/// Returns the probe of recovery_error() (report/recovery.h): "error_A", "error_W", and
/// "recovered", 1 where the first is at most 0.05 and, unless all gates are 0, the second too.
Probe recovery_probe();
Probe proficiency_probe();

/// Returns the probe of the largest |alignment| of each expert's neurons with the data's directions
/// "local" and "global", "max_<task>" in the mean over experts, of those that a router gives to one
/// cluster "max_own" and "max_other"; "share_<task>" of the neurons above 0.5; "experts_<c>" whose
/// largest alignment with a local task is with c's; and tables of all that.
Probe specialisation_probe();
/// Returns the probe of the experts that a router gives to one cluster alone, by the data's
/// directions "mean": "routed", "covered", and "misrouted" beside what the overlap of the nearest
/// clusters costs the best rule.
Probe cluster_routing_probe();
/// Returns the probe "error": the test error over the variance of the targets.
Probe relative_error_probe();
/// Returns the probe of single neurons' products with the data's known directions, in networks of
/// one MoE layer: for weights "a" of several vectors an expert and directions "b" a table
/// "single_a_b_<g>" for each group of experts that pruning ranks apart, with a row for every neuron
/// of the expert with the largest router and of that with the smallest.
Probe neurons_probe();

/// Returns the probe of a recurrent network's gates (Model::gates_over_time()): for each a table
/// "<name>_gate" of their means over the test data, by class and step.
Probe gates_probe();

/// Returns the probe of where routers send the patch that decides the class, whose place is the
/// group of an example: for class c, from 1, "routed_class_c", the percentage of its test examples
/// whose patch is sent to the expert that gets it most often; "largest_gate_class_c", where it has
/// the largest gate of the expert in which it has that most often, unless all gates are 1; and
/// "routed_by_any_class_c".
Probe routed_probe();

/// Returns the probe "success", 1 where the test accuracy is at least 90 % (pMoE paper, figure 5).
Probe success_probe();

Probe parameters_probe();
/// Returns the probe of FLOPs per image, by the rows of routing the test data.
Probe flops_probe();

}  // namespace moesaic
