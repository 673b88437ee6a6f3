// SPDX-License-Identifier: Apache-2.0
// Accuracy of a linear map of a network's features learned from few images of each class, as in
// google-research/vmoe's few-shot evaluation (vmoe/evaluate/fewshot.py).
#pragma once

#include "moesaic/train/evaluate.h"

namespace moesaic {

/// Returns the predicted classes [l2, M] of rows x_MD by ridge regression in float64, for each
/// strength l2 > 0, of y = +1 for a row's class and -1 for the others on features x_ND. W = (X^T X
/// + l2 I)^-1 X^T Y = X^T (X X^T + l2 I)^-1 Y, where X is (x - mean) / (std + 1e-5) and a column of
/// 100, a bias that hardly any l2 shrinks.
at::Tensor ridge_predictions(const at::Tensor& x_ND, const at::Tensor& labels_N,
                             int64_t num_classes, const std::vector<double>& l2,
                             const at::Tensor& x_MD);

/// Returns "few_shot.K-shot", the mean accuracy in % over seeds after K images of each class of
/// `train`; "few_shot.K-shot_l2", the strength of the largest mean, chosen on `test` as in the
/// reference; of several seeds also "few_shot.K-shot_std", of a sample. A seed's fewer images are
/// the first of its more. Features are pre_logits, those of an ensemble's members in a row; memory
/// holds those of `test` and of one seed's images. Returns nothing where options.on_progress ended
/// it. Throws Error (usage) for data without classes, and for more shots than a class has images.
Metrics few_shot(Model& model, const std::shared_ptr<const Dataset>& train,
                 const std::shared_ptr<const Dataset>& test, const FewShotOptions& few,
                 const EvaluateOptions& options);

}  // namespace moesaic
