#pragma once
// The draft layer of a model: from the model's own checkpoint, or from a directory of its own, as the mtp/
// folder of -Paddle downloads. Everything that it needs beside its own tensors is the model's.
#include <filesystem>

#include "base/status.h"
#include "model/checkpoint/model_files.h"

namespace troupe::model {

/// True if the checkpoint has tensors of a draft layer, complete or not.
bool has_draft_layer(const Checkpoint& checkpoint);

/// Adds the draft layer to files that are open: its sources to the map, and spec.draft_layers. `directory`:
/// the model's. With dummy weights config.json says whether the model has the layer. Errors are one sentence
/// that names --speculative-config, the tensor or key, and what works instead.
Status add_draft_layer(ModelFiles& files, const std::filesystem::path& directory,
                       const config::SpeculationOptions& speculation, const Shard& shard);

/// The format of the draft layer's matrices, when files.formats has the model's: as its tensors are stored,
/// else as draft_quantization says, else as the model's attention where that is quantised while it is loaded.
Result<kernels::WeightFormat> draft_format(const ModelFiles& files, config::Device device);

}  // namespace troupe::model
