#pragma once
// The reference vision-language models with one more head. They have three; a fourth one of zeros adds exact
// zeros, so logits are the references', and two and four ranks divide the heads.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/checkpoint/spec.h"
#include "model/support/files.h"

namespace troupe::model::test {

inline constexpr int kHeads = 4;

/// [rows, columns] in the upper left corner of zeros.
inline void pad(TestTensor& tensor, std::int64_t rows, std::int64_t columns) {
  const std::int64_t old_rows = tensor.shape[0], old_columns = tensor.shape[1];
  const std::size_t element = tensor.data.size() / static_cast<std::size_t>(old_rows * old_columns);
  std::string made(static_cast<std::size_t>(rows * columns) * element, '\0');
  for (std::int64_t row = 0; row < old_rows; ++row) {
    tensor.data.copy(made.data() + static_cast<std::size_t>(row * columns) * element,
                     static_cast<std::size_t>(old_columns) * element,
                     static_cast<std::size_t>(row * old_columns) * element);
  }
  tensor.data = std::move(made);
  tensor.shape = {rows, columns};
}

/// The checkpoint of a golden with kHeads heads.
inline void write_vision_twin(const std::string& golden, const std::filesystem::path& into) {
  const auto from = golden_directory(golden);
  const auto spec = read_spec(from);
  ASSERT_TRUE(spec.ok());
  const std::int64_t width = kHeads * spec->head_dim;
  nlohmann::json config = nlohmann::json::parse(read_text(from / "config.json"));
  nlohmann::json& text = config.contains("text_config") ? config["text_config"] : config;
  text["num_attention_heads"] = kHeads;
  text["head_dim"] = spec->head_dim;
  write_text(into / "config.json", config.dump());
  std::vector<TestTensor> tensors = tensors_of(*Checkpoint::open(from));
  for (TestTensor& tensor : tensors) {
    if (tensor.name.find("self_attn.q_proj.") != std::string::npos) pad(tensor, width, spec->hidden);
    if (tensor.name.find("self_attn.o_proj.") != std::string::npos) pad(tensor, spec->hidden, width);
  }
  write_safetensors(into / "model.safetensors", tensors);
}

}  // namespace troupe::model::test
