// SPDX-License-Identifier: Apache-2.0
// What processes compare before they work together. All of it throws Error (usage) that names the
// first process which differs from process 0; all processes call it.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace moesaic {

class Dataset;
struct DataRecord;
class Model;
class Processes;

/// Waits until all processes have come so far, however long they take to read what they need, then
/// compares the library that they run.
void check_same_build(const Processes& processes);

/// Compares settings; `what` they are of, such as "recipe", is in the message beside those that
/// differ.
void check_same_settings(const Processes& processes, const std::string& what,
                         const nlohmann::ordered_json& settings);

/// Gives all processes the network of process 0, once all have made theirs, which may differ by
/// rounding. Throws Error (usage) where they are of another configuration.
void take_network(const Processes& processes, const Model& model);

/// Waits for all processes, and compares their checkpoints by name and all bytes of weights and
/// buffers. Where there is no checkpoint, all take the network of process 0.
void agree_on_network(const Processes& processes, const std::filesystem::path& checkpoint,
                      const Model& model);

/// Returns a text that differs where splits differ in what data_record() knows without reading
/// shards, or in the pixels of a few images that are not files.
std::string data_mark(const Dataset& data);
/// Returns the same text of a split whose record is there.
std::string data_mark(const Dataset& data, DataRecord record);

}  // namespace moesaic
