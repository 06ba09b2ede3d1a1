#pragma once
// Writes a checkpoint anew with quantised linears, integers in compressed-tensors' pack-quantized form, fp8
// in blocks with weight_scale_inv (checkpoint/stored_quantisation.h), so that it loads at the disk's speed.
#include <filesystem>
#include <string>

#include "base/status.h"
#include "model/checkpoint/model_files.h"
#include "model/load_progress.h"

namespace troupe::model {

struct CopyPlaces {
  std::filesystem::path from;  ///< the directory of the open files
  std::string config_name = "config.json";
  std::filesystem::path into;  ///< does not exist, or is empty
};

/// Writes the weights of `files`, whose formats say how; config.json with a quantization_config; and a copy
/// of every other small file (tokenizer, chat template, generation_config.json). Codes and scales are those
/// that loading makes, to the bit. Names and orientation are those of a -PT checkpoint. Uses all cores; holds
/// one tensor in memory. Errors name the tensor or the file; the directory is then left incomplete.
Status write_quantised_copy(const ModelFiles& files, const CopyPlaces& places,
                            const LoadProgress& progress = {});

}  // namespace troupe::model
