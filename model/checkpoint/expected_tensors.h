#pragma once
// Which tensors of a checkpoint hold the weights of a network.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/spec.h"
#include "model/checkpoint/tensor_map.h"

namespace troupe::model {

/// A tensor's name with the prefix "model." → its name in the file.
using TensorNames = std::map<std::string, std::string>;

/// How a tensor's shape follows from the matrix that it holds.
enum class Form {
  linear,      ///< [outputs, inputs], or [inputs, outputs] in transposed checkpoints
  stack,       ///< several linears of one shape, [count, …]
  router,      ///< a linear with an orientation of its own, if its shape shows it
  projection,  ///< the same, and it may be stored quantised
  table,       ///< [outputs, inputs] always: the embedding
  norm,        ///< [inputs]
  channels,    ///< `inputs` numbers, flat or by heads
  bias,        ///< [outputs, inputs], or [inputs] for one output
};

/// A weight of the network, and its place in a tensor.
struct Part {
  Weight weight;
  int outputs;
  int inputs;
  int expert = WeightSource::kNoExpert;
  std::int64_t first_output = 0;
  std::int64_t first_input = 0;
  std::int64_t matrix = 0;  ///< index in a stack
};

/// A tensor that the network needs: one weight, or several joined.
struct Expected {
  std::string name;  ///< with the prefix "model."
  Form form = Form::linear;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  std::vector<Part> parts{};
  std::int64_t count = 1;  ///< matrices of a stack
  int layer = 0;

  /// True if it has the checkpoint's orientation.
  bool oriented() const { return form == Form::linear || form == Form::stack; }
  /// True if a checkpoint may have it quantised.
  bool may_be_stored() const { return form == Form::linear || form == Form::projection; }

  /// The shape in the file. `transposed` matters for linears, stacks and routers alone.
  std::vector<std::int64_t> shape(bool transposed) const;
};

/// Every tensor of the network, in the form that the checkpoint has if several are possible. The error says
/// which are missing, or in which layer the spec and the names disagree about its kind.
Result<std::vector<Expected>> expected_tensors(const ModelSpec& spec, bool tied, const TensorNames& names);

/// What the names of the draft layer's tensors begin with.
inline constexpr std::string_view kDraftPrefix = "model.mtp_";

/// The same of the draft layer's tensors: two norms, a projection and a dense layer's block.
Result<std::vector<Expected>> expected_draft_tensors(const ModelSpec& spec, const TensorNames& names);

/// What messages of does_not_fit() begin with.
inline constexpr std::string_view kDoesNotFit = "The checkpoint does not fit its config.json: ";

/// kDoesNotFit and the message.
Status does_not_fit(const std::string& message);

/// The same for a list of names, "2 missing tensors: 'a', 'b'"; a long list is cut.
Status does_not_fit(const std::string& what, const TensorNames& names);

}  // namespace troupe::model
