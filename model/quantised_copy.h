#pragma once
// Writes a checkpoint anew with quantised linears, integers in compressed-tensors' pack-quantized form, fp8
// in blocks with weight_scale_inv (checkpoint/stored_quantisation.h), so that it loads at the disk's speed.
#include <filesystem>
#include <functional>
#include <string>

#include "base/status.h"
#include "model/calibration.h"
#include "model/checkpoint/model_files.h"
#include "model/load_progress.h"

namespace troupe::model {

struct CopyPlaces {
  std::filesystem::path from;  ///< the directory of the open files
  std::string config_name = "config.json";
  /// Does not exist, is empty, or has what a call of the same arguments left there when it was ended.
  std::filesystem::path into;
};

/// What makes the static scales of a copy that has some.
struct CopyCalibration {
  std::string key;  ///< of its prompts; an unfinished copy with another one is refused
  std::function<Result<Calibration>()> run;
};

struct CopyReport {
  /// Of wint2: sum of the squared errors of the experts' weights over that of the weights. 0: nothing was
  /// encoded.
  double squared_error = 0;
  Calibration calibration;  ///< that the static scales are made from; of no layer without any
};

/// Writes the weights of `files`, whose formats say how; config.json with a quantization_config; and a copy
/// of every other small file (tokenizer, chat template, generation_config.json). Codes and scales are those
/// that loading makes, to the bit. Names and orientation are those of a -PT checkpoint. Experts in wint2 are
/// encoded; the other linears then have the form of FastDeploy's tools, as they do beside W4A8 experts.
/// Formats with static scales need a `calibration`; it runs first, and its result is kept in the directory
/// until the copy is whole. Uses all cores; holds one tensor in
/// memory. Errors name the tensor or the file; the directory is then left incomplete. Files get their names
/// when they are whole; those that are there already are not made again.
Status write_quantised_copy(const ModelFiles& files, const CopyPlaces& places,
                            const LoadProgress& progress = {}, CopyReport* report = nullptr,
                            const CopyCalibration& calibration = {});

}  // namespace troupe::model
