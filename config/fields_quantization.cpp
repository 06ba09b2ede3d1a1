// The flags that say how weights, keys and values are stored.
#include <string>

#include "config/fields.h"
#include "config/quantization.h"

namespace troupe::config {
namespace {

Status check_group(std::string_view text) {
  if (text == "0" || text == "32" || text == "64" || text == "128") return {};
  return invalid("got \"" + std::string(text.substr(0, 80)) + "\", expected 32, 64 or 128");
}

}  // namespace

std::vector<Field> quantization_fields(QuantizationOptions& o) {
  return {
      {.name = "quantization",
       .slot = &o.method,
       .help = "how weights are stored: wint8, wint4 (experts in 4 bits, the rest in 8; without experts all "
               "in 4), block_wise_fp8 (an Ada or Hopper GPU); wint2, w4a8, w4a8c8 (experts in 2 or 4 bits, "
               "made by "
               "troupe quantize); or JSON, such as "
               "{\"quantization\":\"mix_quant\",\"dense_quant_type\":\"wint8\",\"moe_quant_type\":\"wint4\"};"
               " see docs/quantization.md",
       .check = check_quantization,
       .refusal = unavailable_quantization,
       .when_unset = "as in the checkpoint"},
      {.name = "quantization-group",
       .slot = &o.group,
       .help = "inputs that share a scale of 4-bit weights: 32, 64 or 128",
       .min = 0,
       .max = 128,
       .check = check_group,
       .when_unset = "all inputs in experts, 64 elsewhere"},
      {.name = "lm-head-dtype",
       .slot = choice(o.lm_head, {"auto", "int8", "int4"}),
       .help = "how the LM head is stored; auto: in --dtype"},
      {.name = "kv-cache-dtype",
       .slot = choice(o.kv_cache, {"auto", "int8", "fp8"}),
       .help = "how keys and values are stored; auto: in --dtype"},
  };
}

}  // namespace troupe::config
