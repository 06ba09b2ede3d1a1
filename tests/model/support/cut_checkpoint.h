#pragma once
// Checkpoints that are cut for their ranks: a folder for each, with the tensors that it holds.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint/model_files.h"
#include "model/support/files.h"

namespace troupe::model::test {

/// The tensors that a rank holds, under their names.
inline std::vector<TestTensor> tensors_of(const TensorMap& part) {
  std::vector<TestTensor> tensors;
  for (const WeightSource& source : part.sources) {
    const std::size_t element = size_of(source.tensor->type);
    const auto lines = static_cast<std::size_t>(source.transposed ? source.inputs : source.outputs),
               line = static_cast<std::size_t>(source.transposed ? source.outputs : source.inputs);
    TestTensor made{source.name, to_string(source.tensor->type), {}, std::string(lines * line * element, 0)};
    for (std::size_t i = 0; i < lines; ++i) {
      source.tensor->file->read(source.offset() + i * static_cast<std::uint64_t>(source.stride) * element,
                                made.data.data() + i * line * element, line * element);
    }
    if (source.tensor->shape.size() == 2) made.shape.push_back(static_cast<std::int64_t>(lines));
    made.shape.push_back(static_cast<std::int64_t>(line));
    tensors.push_back(std::move(made));
  }
  return tensors;
}

/// Writes the checkpoint as rank0, rank1 …, and its config.json, which lies in `from`, into an empty
/// directory.
inline void cut_for_ranks(const ModelFiles& whole, const std::filesystem::path& from,
                          const std::filesystem::path& to, int ranks) {
  std::filesystem::copy_file(from / "config.json", to / "config.json");
  for (int rank = 0; rank < ranks; ++rank) {
    const auto folder = to / ("rank" + std::to_string(rank));
    std::filesystem::create_directory(folder);
    const auto part = whole.map_of({rank, ranks, false});
    ASSERT_TRUE(part.ok()) << part.status().message;
    write_safetensors(folder / "model.safetensors", tensors_of(*part));
  }
}

}  // namespace troupe::model::test
