#include "kernels/cuda/attention/choose.h"

namespace troupe::kernels::cuda {
namespace {

/// Why neither tensor core kernel takes the shape; null: flash takes it.
const char* flash_obstacle(const AttentionShape& s) {
  if (size_of(s.dtype) != 2) return "float32 has no tensor core kernel";
  if (s.head_dim != 64 && s.head_dim != 128) return "head_dim is neither 64 nor 128";
  if (s.kv != KvFormat::plain && s.dtype != DType::bf16)
    return "8-bit KV of another dtype than bfloat16 has no tensor core kernel";
  return nullptr;
}

/// Why flash is not taken; null: it is.
const char* prompt_obstacle(const AttentionShape& s, const GpuTraits& gpu) {
  if (gpu.batch_invariant) return "batch-invariant";
  if (!gpu.may(KernelWay::attention_flash)) return "flash computes wrongly on this GPU";
  return flash_obstacle(s);
}

/// Why the decode kernel does not take the shape; null: it does.
const char* decode_obstacle(const AttentionShape& s, const GpuTraits& gpu) {
  if (const char* why = flash_obstacle(s)) return why;
  if (!gpu.may(KernelWay::attention_decode)) return "the decode kernel computes wrongly on this GPU";
  if (s.first > 0 && gpu.block_shared_bytes < kFewOneTokenBytes)
    return "a block has too little shared memory for the kernel that skips token 0";
  return s.group() > kDecodeGroup ? "more than 8 q heads for each KV head" : nullptr;
}

std::string number(int n, const char* of) { return std::to_string(n) + of; }

}  // namespace

AttentionChoice choose(const AttentionShape& s, const GpuTraits& gpu) {
  const char* const no_decode = decode_obstacle(s, gpu);
  const char* const no_flash = prompt_obstacle(s, gpu);
  const AttentionWay decodes = no_decode == nullptr ? AttentionWay::decode : AttentionWay::generic;
  const char* const decodes_reason = no_decode == nullptr ? "one token each" : no_decode;
  if (gpu.batch_invariant) {
    const char* const why = no_decode == nullptr ? "batch-invariant: each row by itself" : no_decode;
    return {.decodes = decodes, .pieces = decodes, .decodes_reason = why, .pieces_reason = why};
  }
  if (s.has_few_tokens() && no_decode == nullptr && gpu.may(KernelWay::attention_few) &&
      gpu.block_shared_bytes >= kFewBytes) {
    const char* const why = "a few tokens each";
    return {.decodes = AttentionWay::few,
            .pieces = AttentionWay::few,
            .decodes_reason = why,
            .pieces_reason = why};
  }
  if (!s.has_pieces()) return {.decodes = decodes, .decodes_reason = decodes_reason};
  if (no_flash != nullptr) {  // what hinders flash hinders decode
    return {.decodes = decodes, .pieces = decodes, .decodes_reason = no_flash, .pieces_reason = no_flash};
  }
  AttentionChoice choice{.pieces = AttentionWay::flash,
                         .pieces_reason = s.kv == KvFormat::plain
                                              ? "several tokens each"
                                              : "several tokens each, 8-bit KV expanded first"};
  // A single one with several rows is a piece, unless some of them are padding.
  if (s.sequences > 1 || s.most_tokens > 0) {
    choice.decodes = decodes;
    choice.decodes_reason = decodes_reason;
  }
  return choice;
}

const char* to_string(AttentionWay way) {
  switch (way) {
    case AttentionWay::none: return "none";
    case AttentionWay::decode: return "decode";
    case AttentionWay::few: return "few";
    case AttentionWay::flash: return "flash";
    case AttentionWay::generic: return "generic";
  }
  return "?";
}

std::string to_string(const AttentionChoice& c) {
  const auto part = [](AttentionWay way, const char* reason) {
    return std::string(to_string(way)) + " (" + reason + ")";
  };
  if (c.one_launch()) return part(c.decodes, c.decodes_reason);
  std::string text;
  if (c.decodes != AttentionWay::none) text = part(c.decodes, c.decodes_reason);
  if (c.pieces == AttentionWay::none) return text;
  return text + (text.empty() ? "" : "; ") + "pieces of prompts: " + part(c.pieces, c.pieces_reason);
}

std::string to_string(const AttentionShape& s) {
  return number(s.heads, " heads, ") + number(s.kv_heads, " KV heads of ") + number(s.head_dim, " ") +
         to_string(s.dtype) + (s.kv == KvFormat::plain ? "" : std::string(", ") + to_string(s.kv) + " KV") +
         ", " + number(s.rows, s.rows == 1 ? " row of " : " rows of ") +
         number(s.sequences, s.sequences == 1 ? " sequence" : " sequences");
}

}  // namespace troupe::kernels::cuda
