// SPDX-License-Identifier: Apache-2.0
// Methods as Python's text, which script modules of that dialect carry.
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <string>

namespace moesaic::script {

/// Gives a module the text of its methods, TorchScript as far as it goes, in the words of Python.
void keep_python(torch::jit::Module& module, const std::string& source);

/// Returns the text of a method that was recorded. Throws Error where Python has no such text.
std::string python_of(const torch::jit::Function& recorded);

}  // namespace moesaic::script
