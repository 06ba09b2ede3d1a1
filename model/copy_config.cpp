#include "model/copy_config.h"

#include <string>

#include "kernels/moe.h"

namespace troupe::model {
namespace {

using JsonValue = nlohmann::ordered_json;
using kernels::WeightFormat;

JsonValue weights_json(const WeightFormat& format, int group) {
  JsonValue json = {{"num_bits", format.bits()}, {"type", "int"}, {"symmetric", true}, {"dynamic", false}};
  json["strategy"] = group == 0 ? "channel" : "group";
  json["group_size"] = group == 0 ? JsonValue() : JsonValue(group);
  return json;
}

/// The modules of a kind that is not quantised stay out of an fp8 checkpoint by their names.
JsonValue fp8_config(const ModelFiles& files) {
  const WeightFormats& formats = files.formats;
  JsonValue others = JsonValue::array({"lm_head", "mlp.gate"});
  if (files.spec.vision) others.insert(others.end(), {"vision_model", "model.resampler_model"});
  for (int layer = 0; layer < files.spec.layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    if (!formats.attention.quantised()) others.push_back(at + "self_attn");
    if (!(files.spec.moe_layer(layer) ? formats.experts_of(layer) : formats.mlp).quantised())
      others.push_back(at + "mlp");
  }
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {kernels::kFp8Block, kernels::kFp8Block}},
          {"modules_to_not_convert", others}};
}

}  // namespace

nlohmann::ordered_json quantization_config(const ModelFiles& files) {
  const WeightFormats& formats = files.formats;
  if (formats.fp8()) return fp8_config(files);
  if (formats.wint2()) {
    JsonValue made = {{"quantization", "wint2"}, {"moe_quant_type", "wint2"}};
    if (formats.attention.quantised()) made["dense_quant_type"] = "wint8";
    if (files.spec.shared_experts > 0) made["shared_experts_quant_type"] = "wint2";
    return made;
  }
  if (formats.w4a8) {
    JsonValue made = {{"quantization", "mix_quant"}, {"moe_quant_type", "w4a8"}};
    if (formats.attention.quantised()) made["dense_quant_type"] = "wint8";
    if (formats.static_kv) made["kv_cache_quant_type"] = "int8";
    made["is_quantized"] = true;
    made["is_permuted"] = true;  // codes in the kernels' order, scales finished: paddle_copy.h
    made["hadamard_block_size"] = kernels::kHadamardBlock;
    return made;
  }
  JsonValue groups = JsonValue::object();
  const auto add = [&](const char* target, const WeightFormat& format, int group) {
    groups["group_" + std::to_string(groups.size())] = {{"targets", JsonValue::array({target})},
                                                        {"weights", weights_json(format, group)},
                                                        {"input_activations", nullptr}};
  };
  if (formats.attention.quantised()) add("Linear", formats.attention, formats.attention.group);
  if (files.spec.experts > 0 && formats.experts.quantised()) {
    const bool slices = files.spec.shared_experts > 1 && formats.experts.group == 0;
    add(slices ? "re:.*mlp\\.(experts\\.\\d+\\.|shared_experts\\.(gate|up)_proj).*"
               : "re:.*mlp\\.(experts|shared_experts)\\..*",
        formats.experts, formats.experts.group);
    // Each slice of the shared experts has scales of its own.
    if (slices) add("re:.*mlp\\.shared_experts\\.down_proj", formats.experts, files.spec.expert_intermediate);
  }
  JsonValue ignore = JsonValue::array({"re:.*mlp\\.gate$"});
  if (files.spec.vision) {
    ignore.insert(ignore.end(), {"re:vision_model\\..*", "re:model\\.resampler_model\\..*"});
  }
  if (formats.lm_head.quantised()) {
    add("lm_head", formats.lm_head, formats.lm_head.group);
  } else {
    ignore.push_back("lm_head");
  }
  return {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"},
          {"quantization_status", "compressed"},  {"config_groups", groups},
          {"kv_cache_scheme", nullptr},           {"ignore", ignore}};
}

}  // namespace troupe::model
