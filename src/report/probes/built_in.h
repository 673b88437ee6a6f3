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

/// Returns the probe "error": the test error over the variance of the targets.
Probe relative_error_probe();

/// Returns the probe "success", 1 where the test accuracy is at least 90 % (pMoE paper, figure 5).
Probe success_probe();

Probe parameters_probe();
/// Returns the probe of FLOPs per image, by the rows of routing the test data.
Probe flops_probe();

}  // namespace moesaic
