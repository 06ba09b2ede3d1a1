#include "model/step_choices.h"

#include <algorithm>

#include "kernels/cuda/attention/choose.h"
#include "kernels/cuda/moe/choose.h"
#include "kernels/cuda/moe/layout.h"
#include "kernels/cuda/product/choose.h"
#include "kernels/cuda/sample/choose.h"

namespace troupe::model {
namespace {

namespace gpu = kernels::cuda;
using gpu::Ending, gpu::LinearShape;

struct Step {
  int rows = 0;
  int sequences = 0;  ///< as many rows sample
};

/// The ops of a step, in the order in which they first run.
class Choices {
 public:
  Choices(const ModelSpec& spec, const WeightFormats& formats, Step step, const gpu::GpuTraits& traits)
      : spec_(spec), formats_(formats), dtype_(formats.activations), step_(step), traits_(traits) {}

  std::vector<StepChoice> make() {
    add("qkv", qkv());
    attention();
    add("attention out", attention_out());
    if (spec_.moe_layers() < spec_.layers) dense_layer();
    if (spec_.moe_layers() > 0) experts();
    LinearShape head = product(Ending::store_f32, formats_.lm_head, spec_.vocab, spec_.hidden);
    head.rows = step_.sequences;
    add("lm_head", head);
    sampling();
    return std::move(choices_);
  }

 private:
  LinearShape product(Ending ending, const kernels::WeightFormat& format, int outputs, int inputs) const {
    return {.ending = ending,
            .format = format,
            .outputs = outputs,
            .inputs = inputs,
            .rows = step_.rows,
            .head_dim = spec_.head_dim,
            .kv = dtype_};
  }
  LinearShape qkv() const {
    return product(Ending::qkv, formats_.attention, spec_.q_width() + 2 * spec_.kv_width(), spec_.hidden);
  }
  LinearShape attention_out() const {
    return product(Ending::add, formats_.attention, spec_.hidden, spec_.q_width());
  }

  void add(std::string op, const LinearShape& shape) {
    const gpu::LinearChoice choice = choose(shape, traits_);
    choices_.push_back(
        {std::move(op), to_string(shape), to_string(choice), choice.way == gpu::LinearWay::generic});
  }

  void attention() {
    const gpu::AttentionShape shape{.dtype = dtype_,
                                    .kv = formats_.kv,
                                    .heads = spec_.heads,
                                    .kv_heads = spec_.kv_heads,
                                    .head_dim = spec_.head_dim,
                                    .rows = step_.rows,
                                    .sequences = step_.sequences};
    const gpu::AttentionChoice choice = choose(shape, traits_);
    choices_.push_back(
        {"attention", to_string(shape), to_string(choice),
         choice.decodes == gpu::AttentionWay::generic || choice.pieces == gpu::AttentionWay::generic});
  }

  void dense_layer() {
    const LinearShape gate_up =
        product(Ending::swiglu, formats_.mlp, kernels::gate_up_outputs(spec_.intermediate), spec_.hidden);
    const LinearShape down = product(Ending::add, formats_.mlp, spec_.hidden, spec_.intermediate);
    const gpu::DenseTailShape shape{
        .attention_out = attention_out(), .gate_up = gate_up, .down = down, .next = qkv(), .has_next = true};
    const gpu::DenseTailChoice tail = choose(shape, traits_);
    if (!tail.halved_norms) {
      add("gate_up", gate_up);
      add("down", down);
    }
    choices_.push_back(
        {"dense tail", std::to_string(step_.rows) + (step_.rows == 1 ? " row" : " rows"),
         std::string(tail.halved_norms ? "norms in halves" : "op by op") + " (" + tail.reason + ")", false});
    if (!tail.halved_norms) return;
    const char* const names[] = {"  attention out", "  gate_up", "  down", "  next qkv"};
    const LinearShape shapes[] = {shape.attention_out, gate_up, down, shape.next};
    for (std::size_t i = 0; i < std::size(shapes); ++i)
      choices_.push_back({names[i], to_string(shapes[i]), to_string(tail.products[i]), false});
  }

  void experts() {
    const gpu::RoutingShape routing{.dtype = dtype_, .experts = spec_.experts, .rows = step_.rows};
    const gpu::RoutingChoice choice = choose(routing, traits_);
    choices_.push_back({"routing",
                        std::to_string(spec_.experts) + " experts, top " + std::to_string(spec_.top_k),
                        std::string(to_string(choice.way)) + " (" + choice.reason + ")",
                        choice.way == gpu::RoutingWay::generic});
    const bool apart = formats_.shared_apart(spec_.layers - 1) && spec_.shared_experts > 0;
    const int shared = apart ? 0 : spec_.shared_experts;
    const int groups = spec_.experts_held() + shared;
    const auto grouped = [&](LinearShape shape) {
      shape.groups = groups;
      shape.rows = gpu::expected_places(step_.rows, spec_.top_k, shared, spec_.experts_held(), spec_.experts);
      return shape;
    };
    const auto stack = [&](int outputs, int inputs) {
      return kernels::MatrixStack{{nullptr, formats_.experts, outputs, inputs}, groups};
    };
    static const kernels::StaticInput any{};  // choosers compare pointers with null
    const kernels::Moe op{.gate_up = stack(kernels::gate_up_outputs(spec_.expert_intermediate), spec_.hidden),
                          .down = stack(spec_.hidden, spec_.expert_intermediate),
                          .gate_up_inputs = formats_.w4a8 ? &any : nullptr,
                          .experts = spec_.experts,
                          .held = spec_.experts_held(),
                          .shared = shared,
                          .top_k = spec_.top_k,
                          .rows = step_.rows};
    if (gpu::lay_out(op, traits_, nullptr).few) {
      choices_.push_back({"experts", std::to_string(groups) + " × " + to_string(formats_.experts),
                          "gate_up, and down with the sum (few rows: each row reads its experts)", false});
    } else {
      add("experts gate_up",
          grouped(product(Ending::swiglu, formats_.experts,
                          kernels::gate_up_outputs(spec_.expert_intermediate), spec_.hidden)));
      add("experts down",
          grouped(product(Ending::store_scaled, formats_.experts, spec_.hidden, spec_.expert_intermediate)));
    }
    if (!apart) return;
    add("shared gate_up", product(Ending::swiglu, *formats_.shared,
                                  kernels::gate_up_outputs(spec_.expert_intermediate), spec_.hidden));
    add("shared down", product(Ending::add, *formats_.shared, spec_.hidden, spec_.expert_intermediate));
  }

  void sampling() {
    const gpu::SampleChoice c =
        choose(gpu::SampleShape{.rows = step_.sequences, .vocab = spec_.vocab}, traits_);
    choices_.push_back({"sampling", "vocabulary of " + std::to_string(spec_.vocab),
                        std::to_string(c.blocks) + (c.blocks == 1 ? " block of " : " blocks of ") +
                            std::to_string(c.threads) + " threads a row, logits in " +
                            (c.resident ? "shared memory (" : "scratch memory (") + c.reason + ")",
                        !c.resident});
  }

  const ModelSpec& spec_;
  const WeightFormats& formats_;
  const DType dtype_;  // of the activations
  const Step step_;
  const gpu::GpuTraits& traits_;
  std::vector<StepChoice> choices_;
};

}  // namespace

std::vector<StepChoice> decode_choices(const ModelSpec& spec, const WeightFormats& formats, int sequences,
                                       const gpu::GpuTraits& traits) {
  return Choices(spec, formats, {.rows = sequences, .sequences = sequences}, traits).make();
}

std::vector<StepChoice> prefill_choices(const ModelSpec& spec, const WeightFormats& formats, int tokens,
                                        const gpu::GpuTraits& traits) {
  return Choices(spec, formats, {.rows = tokens, .sequences = 1}, traits).make();
}

std::vector<std::string> slow_choices(const ModelSpec& spec, const WeightFormats& formats,
                                      const gpu::GpuTraits& traits) {
  std::vector<std::string> lines, named;
  const auto collect = [&](const char* step, const std::vector<StepChoice>& choices) {
    for (const StepChoice& c : choices) {
      if (!c.slow || std::find(named.begin(), named.end(), c.op) != named.end()) continue;
      named.push_back(c.op);
      lines.push_back(c.op + " of " + step + " (" + c.shape + "): " + c.way);
    }
  };
  collect("decode steps", decode_choices(spec, formats, 8, traits));
  collect("prefill steps", prefill_choices(spec, formats, 512, traits));
  return lines;
}

}  // namespace troupe::model
