#include "model/checkpoint/tensor_map.h"

#include <string_view>

#include "model/checkpoint/expected_tensors.h"

namespace troupe::model {
namespace {

class Mapper {
 public:
  Mapper(const ModelSpec& spec, const Checkpoint& checkpoint) : spec_(spec), checkpoint_(checkpoint) {}

  Result<TensorMap> map() {
    index_names();
    if (!status_.ok()) return status_;
    skip_known();
    Result<std::vector<Expected>> expected = expected_tensors(spec_, map_.tied, names_);
    if (!expected) return expected.status();
    find_orientation(*expected);
    for (const Expected& e : *expected) take(e);
    if (!status_.ok()) return status_;
    if (!names_.empty()) return does_not_fit("unknown tensors", names_);
    return std::move(map_);
  }

 private:
  // Every tensor under its -PT prefix, with its name in the file.
  void index_names() {
    constexpr std::string_view kPaddle = "ernie.";
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      const bool paddle = name.starts_with(kPaddle);
      paddle_prefix_ |= paddle;
      std::string common = paddle ? "model." + name.substr(kPaddle.size()) : name;
      const auto [at, added] = names_.emplace(std::move(common), name);
      if (!added) {
        fail("the tensors '" + at->second + "' and '" + name + "' are the same weight.");
      }
    }
  }

  // Tensors that are not needed: multi-token prediction serves speculation alone, rotation tables follow from
  // rope_theta, a tied head repeats the embedding.
  void skip_known() {
    map_.tied = spec_.tied.value_or(!names_.contains("lm_head.weight"));
    for (auto it = names_.begin(); it != names_.end();) {
      const bool draft = it->first.starts_with("model.mtp_");
      const bool rotation = it->first.ends_with(".rotary_emb.inv_freq");
      const bool copy = map_.tied && it->first == "lm_head.weight";
      if (!draft && !rotation && !copy) {
        ++it;
        continue;
      }
      map_.skipped.push_back(it->second);
      it = names_.erase(it);
    }
  }

  const FileTensor& tensor(const Expected& expected) const {
    return *checkpoint_.find(names_.find(expected.name)->second);
  }

  void find_orientation(const std::vector<Expected>& all) {
    for (const Expected& expected : all) {
      if (!expected.oriented() || expected.outputs == expected.inputs) continue;
      const std::vector<std::int64_t>& shape = tensor(expected).shape;
      for (const bool transposed : {false, true}) {
        if (shape != expected.shape(transposed)) continue;
        map_.transposed = transposed;
        return;
      }
    }
    map_.transposed = paddle_prefix_;  // all matrices are square: only the dialect tells
  }

  void take(const Expected& expected) {
    const auto named = names_.find(expected.name);
    const FileTensor& tensor = *checkpoint_.find(named->second);
    bool transposed = map_.transposed && expected.oriented();
    if (expected.form == Form::router) {
      transposed =
          expected.outputs == expected.inputs ? map_.transposed : tensor.shape == expected.shape(true);
    }
    const bool flat = expected.form == Form::bias && tensor.shape == std::vector{expected.inputs};
    const std::vector<std::int64_t> shape = expected.shape(transposed);
    if (tensor.shape != shape && !flat) {
      fail("the tensor '" + named->second + "' has the shape " + shape_text(tensor.shape) + "; expected is " +
           shape_text(shape) + ".");
    }
    if (tensor.type != FileType::bf16 && tensor.type != FileType::f16 && tensor.type != FileType::f32) {
      fail("the tensor '" + named->second + "' is " + to_string(tensor.type) +
           "; allowed are BF16, F16 and F32.");
    }
    const std::int64_t stride = transposed ? expected.outputs : expected.inputs;
    for (const Part& part : expected.parts) {
      const std::int64_t within = transposed ? part.first_input * stride + part.first_output
                                             : part.first_output * stride + part.first_input;
      map_.sources.push_back({.weight = part.weight,
                              .layer = expected.layer,
                              .expert = part.expert,
                              .tensor = &tensor,
                              .name = named->second,
                              .first = part.matrix * expected.outputs * expected.inputs + within,
                              .stride = stride,
                              .transposed = transposed,
                              .outputs = part.outputs,
                              .inputs = part.inputs});
    }
    names_.erase(named);
  }

  void fail(const std::string& message) {
    if (status_.ok()) status_ = does_not_fit(message);
  }

  const ModelSpec& spec_;
  const Checkpoint& checkpoint_;
  TensorNames names_;  // names that are left at the end are unknown
  bool paddle_prefix_ = false;
  TensorMap map_;
  Status status_;
};

}  // namespace

Result<TensorMap> map_tensors(const ModelSpec& spec, const Checkpoint& checkpoint) {
  return Mapper(spec, checkpoint).map();
}

}  // namespace troupe::model
