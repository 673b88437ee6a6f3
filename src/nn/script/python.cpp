// SPDX-License-Identifier: Apache-2.0
#include "python.h"

#include <fmt/ranges.h>
#include <torch/csrc/jit/serialization/python_print.h>

#include <algorithm>
#include <array>
#include <map>
#include <regex>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"
#include "moesaic/nn/script.h"

namespace moesaic::script {
namespace {

constexpr const char* kSource = "python_source";

/// What Python says otherwise: operators that its module torch does not have, dtypes, which
/// TorchScript names by numbers, torch.Size, which is no list, and sizes that depend on values.
constexpr std::array<std::pair<const char*, const char*>, 12> kWords = {{
    {"torch.linear(", "F.linear("},
    {"torch.gelu(", "F.gelu("},
    {"torch.leaky_relu(", "F.leaky_relu("},
    {"torch.softplus(", "F.softplus("},
    {"torch.floor_divide(", "floor_divide("},
    {".to(1)", ".to(torch.int8)"},
    {".to(6)", ".to(torch.float32)"},
    {".to(7)", ".to(torch.float64)"},
    {".to(15)", ".to(torch.bfloat16)"},
    {"size[1:] ==", "list(size[1:]) =="},
    {"def mix(self, x: Tensor, gates: Tensor)",
     "def mix(self, x: Tensor, gates: Tensor, room: int)"},
    {"gate.nonzero().flatten()", "torch.topk(gate.abs(), room, 0)[1]"},
}};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

/// Returns the methods of a class that `all` text of the network calls, or the proof of an export,
/// without empty lines.
std::string called_methods(const std::string& text, const std::string& all) {
  std::string out;
  bool is_called = true;
  for (const std::string& line : split(text, '\n')) {
    if (line.find_first_not_of(' ') == line.npos) continue;
    if (line.starts_with("def ")) {
      const std::string name = line.substr(4, line.find('(') - 4);
      is_called =
          name == "forward" || name == "combine_weights" || all.find("." + name + "(") != all.npos;
      if (is_called) out += "\n";
    }
    if (is_called) out += "    " + line + "\n";
  }
  return out;
}

/// Returns a line with the values of names that stand for a part of `self`.
std::string with_values(const std::string& line, const std::map<std::string, std::string>& values) {
  static const std::regex word(R"([A-Za-z_][\w.]*)");
  std::string out;
  size_t end = 0;
  for (std::sregex_iterator at(line.begin(), line.end(), word), last; at != last; ++at) {
    const std::string found = at->str();
    const size_t begin = static_cast<size_t>(at->position()), dot = found.find('.');
    const auto value = values.find(found.substr(0, dot));
    const bool is_key = begin + found.size() < line.size() && line[begin + found.size()] == '=';
    out += line.substr(end, begin - end);
    out += value == values.end() || is_key
               ? found
               : value->second + (dot == found.npos ? "" : found.substr(dot));
    end = begin + found.size();
  }
  return out + line.substr(end);
}

/// Returns recorded lines without those that only name a part of `self`: its values stand where
/// the names stood.
std::string without_lookups(const std::string& text) {
  static const std::regex lookup(R"re( +(\w+) = (\w+(?:\.\w+)+|getattr\([\w.]+, "\w+"\)))re");
  std::map<std::string, std::string> values;
  std::string out;
  for (const std::string& line : split(text, '\n')) {
    std::smatch parts;
    if (std::regex_match(line, parts, lookup)) {
      values[parts[1]] = with_values(parts[2], values);
    } else {
      out += with_values(line, values) + "\n";
    }
  }
  return out;
}

std::string dtype_text(const at::Tensor& tensor) {
  static const std::map<at::ScalarType, const char*> texts = {
      {at::kFloat, ""},
      {at::kLong, ", dtype=torch.int64"},
      {at::kChar, ", dtype=torch.int8"},
      {at::kDouble, ", dtype=torch.float64"}};
  const auto found = texts.find(tensor.scalar_type());
  if (found != texts.end()) return found->second;
  fail("export: no text for the dtype {}; {}", c10::toString(tensor.scalar_type()), kFormatHint);
}

/// Writes the classes of a network, those of children first.
class Writer {
 public:
  Writer(const Module& network, const std::function<bool(const std::string&)>& is_stored)
      : is_stored_(is_stored) {
    for (const Module& module : network.modules()) source_ += source_of(module);
  }

  /// Returns the name of the class of a module, which `path` leads to.
  std::string add(const Module& module, const std::string& path) {
    std::string lines = "    def __init__(self):\n        super().__init__()\n";
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      lines += fmt::format("        self.{} = nn.Parameter({})\n", item.name, empty(item.value));
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      lines +=
          fmt::format("        self.register_buffer(\"{}\", {}{})\n", item.name, empty(item.value),
                      is_stored_(path + item.name) ? "" : ", persistent=False");
    }
    for (const auto& child : module.named_children()) {
      lines += fmt::format("        self.add_module(\"{}\", {}())\n", child.name,
                           add(child.value, path + child.name + "."));
    }
    return name_of(module, lines + called_methods(source_of(module), source_));
  }

  std::string text;

 private:
  static std::string source_of(const Module& module) {
    return module.hasattr(kSource) ? module.attr(kSource).toStringRef() : std::string();
  }

  static std::string empty(const at::Tensor& value) {
    return fmt::format("torch.empty([{}]{})", fmt::join(value.sizes(), ", "), dtype_text(value));
  }

  /// Names of classes are the module's kind, numbered where a kind has several texts.
  std::string name_of(const Module& module, const std::string& lines) {
    const std::string kind = module.type()->name()->name();
    const auto [known, is_new] = names_.try_emplace({kind, lines});
    if (!is_new) return known->second;
    const int64_t number = ++counts_[kind];
    known->second = number == 1 ? kind : fmt::format("{}{}", kind, number);
    text += fmt::format("\n\nclass {}(nn.Module):\n{}", known->second, lines);
    return known->second;
  }

  const std::function<bool(const std::string&)>& is_stored_;
  std::string source_;  ///< Methods of all modules.
  std::map<std::pair<std::string, std::string>, std::string> names_;
  std::map<std::string, int64_t> counts_;
};

}  // namespace

void keep_python(torch::jit::Module& module, const std::string& source) {
  std::string text = source;
  for (const auto& [from, to] : kWords) replace_all(text, from, to);
  module.register_attribute(kSource, c10::StringType::get(), std::move(text));
}

std::string python_of(const torch::jit::Function& recorded) {
  std::vector<c10::IValue> constants;
  torch::jit::PrintDepsTable classes;
  torch::jit::PythonPrint printer(constants, classes);
  printer.printMethod(recorded);
  std::string text;
  for (const std::string& line : split(printer.str(), '\n')) {
    const size_t depth = std::min(line.find_first_not_of(' '), line.size());
    text += std::string(depth, ' ') + line + "\n";
  }
  // A recorded convolution has arguments of the backend around the number of its groups.
  static const std::regex backend(R"(, False, \[0(?:, 0)*\], (\d+)(?:, (?:True|False)){4}\))");
  text = std::regex_replace(text, backend, ", $1)");
  replace_all(text, "torch._convolution(", "torch.conv2d(");
  replace_all(text, "annotate(List[int], [])", "[]");
  const bool is_plain =
      constants.empty() && text.find("ops.") == text.npos && text.find("annotate(") == text.npos;
  if (!is_plain) fail("export: a part of the network has no text of Python; {}", kFormatHint);
  replace_all(text, "torch.", "aten.");
  replace_all(text, "(self,\n    argument_1: ", "(self, argument_1: ");
  replace_all(text, "argument_1", "x");
  return without_lookups(text);
}

PythonClasses python_classes(const Module& network,
                             const std::function<bool(const std::string& name)>& is_stored) {
  Writer writer(network, is_stored);
  const std::string name = writer.add(network, "");
  return {.text = writer.text, .network = name};
}

}  // namespace moesaic::script
