#pragma once
// A model directory, opened: its description, and its weights' headers checked against it.
#include <filesystem>
#include <optional>
#include <string>

#include "base/status.h"
#include "config/options.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/spec.h"
#include "model/checkpoint/tensor_map.h"
#include "model/ranks/shard.h"
#include "model/weight_formats.h"

namespace troupe::model {

struct ModelFiles {
  ModelSpec spec;
  DType dtype = DType::bf16;             ///< to compute in
  WeightFormats formats;                 ///< of `dtype` alone until choose()
  bool tied = true;                      ///< as it will be loaded
  std::optional<Checkpoint> checkpoint;  ///< none with dummy weights
  TensorMap map;                         ///< into the checkpoint
  std::optional<Checkpoint>
      draft_checkpoint;            ///< of a draft layer that has files of its own; the map leads into it
  std::string draft_quantization;  ///< of the draft layer, as --quantization; empty: as the model
  bool of_rank = false;            ///< the checkpoint and the map hold what one rank has of the model

  /// The part of the map that the rank holds. Errors as part_of().
  Result<TensorMap> map_of(const Shard& shard) const;

  /// Sets the formats as choose_formats() does. `for_copy`: the weights will be encoded and written, not
  /// loaded, so that wint2 may be asked for.
  Status choose(config::Device device, const config::QuantizationOptions& options, bool for_copy = false);
};

/// Opens options.directory and reads the headers; weights are not read. A directory that is cut for N ranks
/// has the folders rank0 … rankN-1, each a checkpoint with the tensors that a rank holds: that of `shard` is
/// opened. Errors say which file is missing, truncated, corrupt, of another architecture, or does not fit the
/// others. With method mtp the draft layer is part of the model (draft_files.h).
Result<ModelFiles> open_model(const config::ModelOptions& options, const Shard& shard = {},
                              const config::SpeculationOptions& speculation = {});

/// The model as open_model() gives it with dummy weights, but from its shape instead of a directory.
ModelFiles shape_alone(const ModelSpec& spec, const config::ModelOptions& options);

/// The directory of the checkpoint in `directory`, which of a model that is cut for several ranks is the
/// rank's.
Result<std::filesystem::path> checkpoint_directory(const std::filesystem::path& directory,
                                                   const Shard& shard);

/// Whether these ranks can run the model: its shape can be cut, and so can its formats. A refusal says which
/// numbers of ranks can.
Status check_ranks(const ModelFiles& files, const Shard& shard);

/// Checks that the tokenizer's files are in options.tokenizer or the model's directory.
Status check_tokenizer_files(const config::ModelOptions& options);

}  // namespace troupe::model
