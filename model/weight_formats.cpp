#include "model/weight_formats.h"

#include <algorithm>
#include <utility>

#include "kernels/moe.h"
#include "model/weights.h"

namespace troupe::model {
namespace {

using config::KvCacheDType, config::LmHeadDType, config::WeightQuant;
using kernels::KvFormat, kernels::WeightFormat, kernels::WeightKind;

constexpr int kFp8Capability = 89;

/// Of weights that are not quantised by absent scales: `group` as WeightFormat has it.
WeightFormat format_of(WeightQuant quant, DType activations, int group) {
  switch (quant) {
    case WeightQuant::none: return activations;
    case WeightQuant::wint8: return {WeightKind::int8, activations};
    case WeightQuant::wint4: return {WeightKind::int4, activations, group};
    case WeightQuant::block_wise_fp8: return {WeightKind::fp8, activations};
    case WeightQuant::wint2: return {WeightKind::wint2, activations};
    case WeightQuant::w4a8: return {WeightKind::int4, activations};
  }
  return activations;
}

/// What W4A8 experts need.
Status check_w4a8(const ModelSpec& spec, const WeightFormats& formats) {
  const std::string who = spec.stored_quantisation ? "The checkpoint has " : "--quantization asks for ";
  if (!formats.w4a8) return {};
  if (spec.expert_intermediate % kernels::kHadamardBlock != 0) {
    return failure(Code::unsupported, who + "W4A8 experts, and moe_intermediate_size is " +
                                          std::to_string(spec.expert_intermediate) +
                                          "; allowed are multiples of 128, which are rotated together.");
  }
  return {};
}

/// What shared experts of another format than the others need: slices that fill their rows.
Status check_shared(const ModelSpec& spec, const WeightFormats& formats) {
  const bool apart = formats.shared_apart(0) || formats.shared_apart(spec.layers - 1);
  if (spec.shared_experts == 0 || !apart || spec.expert_intermediate % kernels::kPanel == 0) return {};
  return failure(Code::unsupported, "The shared experts are " + to_string(*formats.shared) +
                                        " and the others are not, and moe_intermediate_size is " +
                                        std::to_string(spec.expert_intermediate) +
                                        "; allowed are multiples of 32 then.");
}

constexpr const char* kWorks = "--quantization wint8 and wint4 work";

/// What fp8 cannot hold or the device cannot multiply.
Status check_fp8(const ModelSpec& spec, config::Device device, const WeightFormats& formats) {
  if (!formats.fp8()) return {};
  if (device != config::Device::cuda && spec.stored_quantisation) {
    return failure(Code::unsupported,
                   std::string("The checkpoint's weights are fp8, which needs an Ada or Hopper GPU; on the "
                               "CPU use the one in bfloat16, where ") +
                       kWorks + ".");
  }
  if (device != config::Device::cuda) {
    return failure(
        Code::unsupported,
        std::string("--quantization block_wise_fp8 needs an Ada or Hopper GPU; on the CPU ") + kWorks + ".");
  }
  // q, k and v lie in one matrix, of which so many outputs share a scale.
  constexpr int kTogether = kernels::kFp8ScaleOutputs;
  if (!formats.attention.fp8()) return {};
  for (const int width : {spec.q_width(), spec.kv_width()}) {
    if (width % kTogether == 0) continue;
    return failure(Code::unsupported, "--quantization block_wise_fp8: the model has " +
                                          std::to_string(width) +
                                          " query or key outputs, allowed are multiples of " +
                                          std::to_string(kTogether) + "; " + kWorks + ".");
  }
  return {};
}

/// Which models wint2 can hold.
Status check_wint2(const ModelSpec& spec, const WeightFormats& formats) {
  if (!formats.wint2()) return {};
  const std::string what =
      spec.stored_quantisation ? "The checkpoint's experts are wint2" : "--quantization wint2";
  for (const auto& [key, width] : {std::pair{"hidden_size", spec.hidden},
                                   std::pair{"moe_intermediate_size", spec.expert_intermediate}}) {
    if (width % kernels::kWint2Unit == 0) continue;
    return failure(Code::unsupported, what + ": " + key + " is " + std::to_string(width) +
                                          ", allowed are multiples of " +
                                          std::to_string(kernels::kWint2Unit) + "; " + kWorks + ".");
  }
  if (spec.vision) {
    return failure(Code::unsupported, what + ": not offered for vision-language models; " + kWorks + ".");
  }
  return {};
}

/// The format of a linear that the checkpoint stores so.
Result<WeightFormat> format_of(const StoredFormat& stored, const std::string& module, DType dtype) {
  if (stored.fp8) return WeightFormat{WeightKind::fp8, dtype};
  if (stored.wint2()) return WeightFormat{WeightKind::wint2, dtype};
  const bool groups = stored.group == 32 || stored.group == 64 || stored.group == 128;
  if (stored.group != 0 && (stored.bits == 8 || !groups)) {
    return failure(Code::unsupported,
                   "quantization_config: " + module + " has " + std::to_string(stored.bits) +
                       " bits in groups of " + std::to_string(stored.group) +
                       "; 8 bits without groups and 4 bits in groups of 32, 64 or 128 are read.");
  }
  return WeightFormat{stored.bits == 8 ? WeightKind::int8 : WeightKind::int4, dtype, stored.group};
}

/// The formats that a checkpoint has already, of one module of each kind and of the experts of every layer;
/// ModelFiles::choose() looks at the others.
Result<WeightFormats> stored_formats(const ModelSpec& spec, DType dtype) {
  WeightFormats formats(dtype);
  const auto find = [&](const std::string& module) -> Result<WeightFormat> {
    const auto stored = module.empty() ? std::nullopt : spec.stored_quantisation->of(module);
    return stored ? format_of(*stored, module, dtype) : WeightFormat(dtype);
  };
  kernels::WeightFormat* const places[] = {&formats.attention, &formats.mlp, &formats.experts,
                                           &formats.lm_head};
  const std::vector<std::string> modules = linear_modules(spec);
  for (std::size_t i = 0; i < std::size(places); ++i) {
    const Result<WeightFormat> found = find(modules[i]);
    if (!found) return found.status();
    *places[i] = *found;
  }
  formats.early_experts = formats.experts;
  for (int layer = 0; layer < spec.layers; ++layer) {
    if (!spec.moe_layer(layer)) continue;
    const Result<WeightFormat> found = find(expert_module(layer));
    if (!found) return found.status();
    if (*found == formats.experts) continue;
    if (formats.early_layers > 0) {
      return failure(Code::unsupported, "quantization_config: the experts of layer " + std::to_string(layer) +
                                            " are " + to_string(*found) + " and those of layers before " +
                                            to_string(formats.early_experts) + " and " +
                                            to_string(formats.experts) + "; two formats, one after the " +
                                            "other, are read.");
    }
    formats.early_layers = layer;
    formats.experts = *found;
  }
  if (formats.early_layers == 0) formats.early_experts = dtype;
  // Other forms have one format for both, which ModelFiles::choose() holds them to.
  if (spec.stored_quantisation->paddle() && spec.shared_experts > 0) {
    const Result<WeightFormat> found = find(shared_module(0));
    if (!found) return found.status();
    formats.shared = *found;
  }
  for (int layer = 0; layer < spec.layers; ++layer) {
    const auto stored =
        spec.moe_layer(layer) ? spec.stored_quantisation->of(expert_module(layer)) : std::nullopt;
    formats.w4a8 |= stored && stored->w4a8();
  }
  formats.static_kv = spec.stored_quantisation->static_kv();
  if (formats.w4a8 && formats.early_layers > 0)
    return failure(Code::unsupported, "quantization_config: w4a8 experts of some layers alone are not read.");
  if (spec.experts == 0) formats.experts = dtype;
  if (spec.moe_layers() == spec.layers) formats.mlp = formats.attention;
  if (spec.tied.value_or(false)) formats.lm_head = dtype;
  return formats;
}

void mix(std::uint64_t& hash, std::uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (value >> (8 * byte) & 0xff)) * 0x100000001b3u;
}

}  // namespace

Result<WeightFormats> choose_formats(const ModelSpec& spec, DType dtype, config::Device device,
                                     const config::QuantizationOptions& options) {
  const auto asked = config::parse_quantization(options.method);
  if (!asked) return Status{asked.status().code, "--quantization: " + asked.status().message, "quantization"};
  const KvCacheDType kv_cache = config::kv_cache_dtype(options);
  const bool mixture = spec.experts > 0;
  const int group = options.group > 0 ? options.group : kDefaultGroup;
  WeightFormats formats(dtype);
  const bool for_experts =
      asked->experts == config::WeightQuant::wint2 || asked->experts == config::WeightQuant::w4a8;
  if (!mixture && for_experts && !spec.stored_quantisation) {
    return failure(Code::unsupported, std::string("--quantization ") + to_string(asked->experts) +
                                          " is for experts, and this model has none; " + kWorks + ".");
  }
  formats.attention = formats.mlp = format_of(mixture ? asked->mixture : asked->dense, dtype, group);
  if (mixture) formats.experts = format_of(asked->experts, dtype, options.group);
  formats.w4a8 = mixture && asked->experts == config::WeightQuant::w4a8;
  formats.static_kv = formats.w4a8 && asked->static_kv();
  if (formats.w4a8 && spec.shared_experts > 0) formats.shared = formats.mlp;
  if (spec.stored_quantisation) {
    const Result<WeightFormats> stored = stored_formats(spec, dtype);
    if (!stored) return stored;
    const bool same = formats.attention == stored->attention && formats.mlp == stored->mlp &&
                      formats.experts == stored->experts && stored->early_layers == 0 &&
                      formats.w4a8 == stored->w4a8 && (!formats.static_kv || stored->static_kv);
    if (!options.method.empty() && !same) {
      return invalid("--quantization: got " + options.method.substr(0, 80) +
                         ", but the checkpoint is quantised already, as " + to_string(*stored, spec) +
                         "; leave the flag out",
                     "quantization", "conflict");
    }
    if (options.lm_head != LmHeadDType::automatic && stored->lm_head.quantised()) {
      return invalid("--lm-head-dtype: the checkpoint's head is quantised already, as " +
                         to_string(stored->lm_head) + "; leave the flag out",
                     "lm-head-dtype", "conflict");
    }
    formats = *stored;
    if (kv_cache == KvCacheDType::fp8 && formats.static_kv) {
      return invalid(
          "--kv-cache-dtype: got fp8, but the checkpoint has static scales of int8 keys and "
          "values; leave the flag out",
          "kv-cache-dtype", "conflict");
    }
    if (formats.static_kv) formats.kv = KvFormat::int8;
  }
  if (Status s = check_w4a8(spec, formats); !s.ok()) return s;
  if (Status s = check_shared(spec, formats); !s.ok()) return s;
  if (Status s = check_fp8(spec, device, formats); !s.ok()) return s;
  if (Status s = check_wint2(spec, formats); !s.ok()) return s;
  if (options.lm_head == LmHeadDType::int8) formats.lm_head = {WeightKind::int8, dtype};
  if (options.lm_head == LmHeadDType::int4) formats.lm_head = {WeightKind::int4, dtype, group};
  formats.draft = formats.attention;
  if (kv_cache == KvCacheDType::int8) formats.kv = KvFormat::int8;
  if (kv_cache == KvCacheDType::fp8) formats.kv = KvFormat::fp8;
  return formats;
}

Status check_gpu(const WeightFormats& formats, int capability) {
  if (!formats.fp8() || capability >= kFp8Capability) return {};
  return failure(Code::unsupported,
                 "fp8 weights (--quantization block_wise_fp8) need an Ada or Hopper GPU, of compute "
                 "capability 8.9 or above; this one has " +
                     std::to_string(capability / 10) + "." + std::to_string(capability % 10) + ", where " +
                     kWorks + ".");
}

std::uint64_t storage_hash(const ModelSpec& spec, const config::Options& options) {
  std::uint64_t hash = spec_hash(spec);
  const config::QuantizationOptions& q = options.quantization;
  for (const char c : q.method) mix(hash, static_cast<unsigned char>(c));
  for (const int value : {static_cast<int>(options.model.dtype), q.group, static_cast<int>(q.lm_head),
                          static_cast<int>(q.kv_cache)}) {
    mix(hash, static_cast<std::uint64_t>(value));
  }
  const config::SpeculationOptions& speculation = options.speculation;
  if (speculation.method == config::DraftMethod::mtp) {  // a layer more in weights and KV blocks
    mix(hash, 1);
    for (const char c : speculation.quantization) mix(hash, static_cast<unsigned char>(c));
  }
  return hash;
}

kernels::KvCache kv_shape(const ModelSpec& spec, const WeightFormats& formats) {
  kernels::KvCache kv{nullptr,       formats.activations, spec.kv_layers(),
                      spec.kv_heads, spec.head_dim,       formats.kv};
  // The hidden row of a block's last token, from which the draft layer goes on behind the block.
  if (spec.draft_layers > 0)
    kv.tail = static_cast<std::size_t>(kernels::padded(spec.hidden)) * size_of(formats.activations);
  return kv;
}

kernels::KvCache cuda_kv_shape(const ModelSpec& spec, const WeightFormats& formats) {
  kernels::KvCache kv = kv_shape(spec, formats);
  kv.ids = true;
  return kv;
}

std::int64_t kv_bytes_per_token(const ModelSpec& spec, const WeightFormats& formats) {
  if (formats.kv == KvFormat::plain) return spec.kv_bytes_per_token(formats.activations);
  const std::int64_t head = spec.head_dim + std::int64_t{sizeof(float)};
  return std::int64_t{2} * spec.kv_layers() * spec.kv_heads * head;
}

std::string to_string(const WeightFormats& formats, const ModelSpec& spec) {
  std::string text = to_string(formats.attention);
  if (formats.early_layers > 0) {
    text += ", experts " + to_string(formats.early_experts) + " below layer " +
            std::to_string(formats.early_layers) + " and " + to_string(formats.experts) + " from it on";
  } else if (spec.experts > 0 && formats.experts != formats.attention) {
    text += ", experts " + to_string(formats.experts);
  }
  if (formats.w4a8) text += " by int8 activations";
  if (spec.shared_experts > 0 && formats.shared_apart(spec.layers - 1))
    text += ", shared experts " + to_string(*formats.shared);
  if (formats.lm_head.quantised() && formats.lm_head != formats.attention) {
    text += ", LM head " + to_string(formats.lm_head);
  }
  if (formats.kv != KvFormat::plain)
    text += std::string(formats.static_kv ? ", KV static " : ", KV ") + to_string(formats.kv);
  if (text != to_string(formats.activations))
    text += std::string("; activations ") + to_string(formats.activations);
  return text;
}

std::vector<FormatSize> format_sizes(const ModelSpec& spec, const WeightFormats& formats, bool tied,
                                     config::Device device, const config::QuantizationOptions& options,
                                     int capability) {
  std::vector<FormatSize> sizes;
  const auto add = [&](std::string name, const WeightFormats& of, bool in_use) {
    sizes.push_back({std::move(name), of, WeightLayout::make(spec, of, tied, {}).bytes, in_use});
  };
  if (spec.stored_quantisation) {
    add(to_string(formats, spec), formats, true);
    return sizes;
  }
  bool found = false;
  config::QuantizationOptions other = options;
  other.method.clear();
  const auto offer = [&](const std::string& name) {
    const auto made = choose_formats(spec, formats.activations, device, other);
    if (!made) return;
    WeightFormats made_here = *made;
    made_here.kv = formats.kv;
    made_here.draft = formats.draft;
    found |= made_here == formats;
    add(name, made_here, made_here == formats);
  };
  offer(to_string(formats.activations));
  std::vector<const char*> methods{"wint8", "wint4"};
  if (spec.experts > 0) methods.push_back("wint2");
  if (capability >= kFp8Capability || formats.fp8()) methods.push_back("block_wise_fp8");
  for (const char* method : methods) {
    other.method = method;
    offer(method);
  }
  if (!found) add(options.method.empty() ? to_string(formats, spec) : "as asked", formats, true);
  std::ranges::stable_sort(sizes, std::greater{}, &FormatSize::weight_bytes);
  return sizes;
}

}  // namespace troupe::model
