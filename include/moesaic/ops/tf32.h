// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moesaic {

/// While a Tf32 object lives, it says whether products and convolutions of float32 on a GPU may
/// round their inputs to 10 bits of mantissa (TF32), in the whole process. It changes nothing on a
/// CPU.
class Tf32 {
 public:
  explicit Tf32(bool allowed);
  ~Tf32();
  Tf32(const Tf32&) = delete;
  Tf32& operator=(const Tf32&) = delete;

 private:
  bool products_, convolutions_;  // As they were.
};

}  // namespace moesaic
