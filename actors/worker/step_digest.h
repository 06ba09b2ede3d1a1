#pragma once
// What ranks compare after a step, to notice that they no longer run the same sequences.
#include <cstdint>

#include "ipc/wire.h"

namespace troupe {

/// FNV-1a over the rows and tokens of a StepResult; ipc/README.md says of which fields. 0 of another record.
inline std::uint64_t digest_of(const wire::RecordView& view) {
  const auto* result = view.as<wire::StepResult>();
  if (result == nullptr) return 0;
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](std::uint32_t word) {
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ (word >> shift & 0xff)) * 0x100000001b3;
  };
  for (const wire::ResultRow& row : view.array(result->rows)) {
    add(row.slot.slot);
    add(row.slot.generation);
    add(static_cast<std::uint32_t>(row.count));
    add(static_cast<std::uint32_t>(row.error));
  }
  for (const TokenId token : view.array(result->tokens)) add(static_cast<std::uint32_t>(token));
  return hash;
}

}  // namespace troupe
