// Headers of checkpoint files: what is accepted covers the data without a gap and lies within the file.
#include <vector>

#include "fuzz/target.h"
#include "model/checkpoint/safetensors.h"

namespace troupe::model {
namespace {

FUZZ_TARGET(safetensors) {
  fuzz::Dice dice(input);
  const auto beyond = dice.take<std::uint32_t>();  // bytes of the file behind those that are here
  const std::vector<std::uint8_t> bytes(dice.rest().begin(), dice.rest().end());
  const std::uint64_t file = bytes.size() + std::uint64_t{beyond};
  const auto header = parse_safetensors(std::as_bytes(std::span(bytes)), file, "f");
  if (!header.ok()) {
    fuzz::require(!header.status().message.empty(), "a refusal says why");
    return;
  }
  std::uint64_t at = 0;
  for (const TensorEntry& tensor : header->tensors) {
    fuzz::require(tensor.begin == at && tensor.end >= tensor.begin,
                  "tensors follow each other without a gap");
    fuzz::require(tensor.shape.size() <= kMaxDimensions && tensor.name.size() <= kMaxTensorNameBytes,
                  "limits hold");
    at = tensor.end;
  }
  fuzz::require(header->data_at <= file && at == file - header->data_at, "the data end with the file");
}

}  // namespace
}  // namespace troupe::model
