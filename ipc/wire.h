#pragma once
// Every record that crosses the rings between the engine and a worker. ipc/README.md is its document.
//
// A record is one contiguous, 8-byte aligned piece of memory: a fixed, trivially copyable header and
// the arrays that its Spans name by offset. It holds no pointer, so it is copied as bytes and means
// the same in both processes. RecordWriter builds one, RecordView reads one and checks every offset against
// the record's size, because the writing process may be broken.
//
// This file holds data and its two accessors only: no Boost, no syscalls, nothing of the ring.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "base/patch_grid.h"
#include "ipc/wire_base.h"
#include "ipc/wire_media.h"

namespace troupe::wire {

/// Raised with every change of a struct below; compared at attach.
inline constexpr std::uint32_t kVersion = 15;
/// Raised with every change of a message that a Message record carries; compared when front and engine greet.
inline constexpr std::uint32_t kMessagesVersion = 10;
inline constexpr std::size_t kAlignment = 8;
/// Longest record but a StepResult. A longer prompt is sent as several TokenRuns in several plans.
inline constexpr std::size_t kMaxRecordBytes = std::size_t{1} << 20;
/// Longest StepResult. Half of its ring, so that one sampled token may show every token of a large vocabulary
/// beside it.
inline constexpr std::size_t kMaxResultBytes = (std::size_t{2} << 20) - 64;
/// Most token ids in one plan (512 KiB of a record).
inline constexpr std::size_t kMaxTokensInPlan = std::size_t{1} << 17;

// ---------------------------------------------------------------------------------- step ring, up

/// What the worker's memory allows. Sizes in bytes unless named otherwise.
struct Capacity {
  std::int32_t kv_blocks = 0;
  std::int32_t block_tokens = 64;
  std::int32_t max_slots = 0;            ///< sequences at once
  std::int32_t max_tokens_per_step = 0;  ///< rows × tokens of one plan
  std::int32_t max_model_len = 0;        ///< positions of one sequence
  std::int32_t vocab_size = 0;
  std::int32_t max_steps_in_flight = 2;
  std::int32_t max_logprobs = 20;
  std::uint64_t weight_bytes = 0;
  std::uint64_t kv_bytes = 0;
  std::uint64_t arena_bytes = 0;  ///< activations
  std::int32_t swap_blocks = 0;   ///< that host memory or the swap file holds beside kv_blocks; 0: none
  std::int32_t media_tokens = 0;  ///< of encoded images and videos held at once; 0: the model sees nothing
  std::int32_t max_drafts = 0;    ///< draft tokens that a row may verify; 0: the worker makes none
  std::int32_t max_sampled = 0;   ///< with max_drafts: tokens that the rows of a plan may yield together
  std::int32_t max_proposed = 0;  ///< draft tokens of a sequence's next row that a result can say
  std::int32_t frame_patches = kMostFramePatches;  ///< with media_tokens: of an image, or of a video's frame
  std::int32_t embedding_width = 0;                ///< numbers of an Embedding; 0: results bring none
};

struct Hello {
  Header header{};
  std::uint32_t version = kVersion;
  std::int32_t rank = 0;
  std::uint64_t spec_hash = 0;  ///< hash of the model's shape; both sides must have read the same model
  std::uint64_t memory = 0;     ///< random; names this life of the KV memory. 0: not to be trusted later
  Capacity capacity{};
  Span<char> device{};  ///< "cpu: avx512_bf16, 2 threads"
};

/// A log-probability of one token, natural logarithm.
struct Logprob {
  TokenId token = 0;
  float logprob = 0;
};

/// Most tokens of a prediction that a worker is told; of a longer one the first.
inline constexpr std::size_t kMostPredicted = std::size_t{1} << 14;

/// Most top entries of one token: a StepResult holds them with the token and all fixed parts.
inline constexpr std::int32_t kMostTopLogprobs = (kMaxResultBytes - 256) / sizeof(Logprob);

/// Asked-for logprobs of the token at one position, before any processor touched the logits.
struct TokenLogprobs {
  SlotRef slot{};
  std::int32_t position = 0;  ///< index of the token in its sequence; < prompt length for a prompt token
  Logprob chosen{};
  Span<Logprob> top{};  ///< most likely first
};

/// The hidden row of a prompt's last token, after the final norm and before the logits.
struct Embedding {
  SlotRef slot{};
  Span<float> values{};  ///< Capacity::embedding_width
};

enum class RowError : std::uint32_t { none = 0, not_finite, no_such_slot };

/// What one row that samples yielded.
struct ResultRow {
  SlotRef slot{};
  std::int32_t first = 0;  ///< index of its first token in StepResult::tokens
  std::int32_t count = 0;  ///< tokens: one, or, of a row with kFromLast, none up to PlanRow::tokens
  RowError error = RowError::none;
  std::int32_t drafts = 0;      ///< draft tokens that it has verified
  std::int32_t proposed = 0;    ///< ids behind its tokens: the draft tokens of the sequence's next row
  std::uint32_t predicted = 0;  ///< 1: what it has verified is of StartSequence::prediction
};

struct StepResult {
  Header header{};
  std::uint64_t step = 0;       ///< the plan's
  std::int64_t started_ns = 0;  ///< monotonic clock
  std::int64_t finished_ns = 0;
  Span<ResultRow> rows{};  ///< one per plan row with kSamples, in plan order
  Span<TokenId> tokens{};
  Span<TokenLogprobs> logprobs{};
  Span<Embedding>
      embeddings{};  ///< of the rows that sample the first token behind a prompt with Sampling::embeds
};

/// Of a rank above 0, instead of a StepResult: rank 0's is the result for all.
struct StepEnd {
  Header header{};
  std::uint64_t step = 0;    ///< the plan's
  std::uint64_t digest = 0;  ///< of the StepResult that it stands for (actors/worker/step_digest.h)
};

// -------------------------------------------------------------------------------- step ring, down

/// Sampling parameters of one sequence; constant for its life.
struct Sampling {
  float temperature = 1.0f;  ///< 0 is greedy
  float top_p = 1.0f;        ///< in (0, 1]
  float min_p = 0.0f;
  std::int32_t top_k = 0;             ///< 0 is off
  float repetition_penalty = 1.0f;    ///< over prompt and output
  float presence_penalty = 0.0f;      ///< over output
  float frequency_penalty = 0.0f;     ///< over output
  std::int32_t min_tokens = 0;        ///< stop ids cannot be sampled before so many output tokens
  std::uint64_t seed = 0;             ///< Philox key, word 0–1
  std::uint32_t choice = 0;           ///< Philox key: index of this choice in its request
  std::int32_t logprobs = -1;         ///< top entries per output token; 0 the chosen one alone; -1 none
  std::int32_t prompt_logprobs = -1;  ///< likewise, for prompt tokens
  std::uint32_t embeds = 0;           ///< 1: the result says the Embedding of its prompt
};

struct LogitBias {
  TokenId token = 0;
  float bias = 0;
};

/// A sequence enters a slot. Its ids follow in TokenRuns, its blocks in BlockRuns.
struct StartSequence {
  SlotRef slot{};
  RequestKey key{};
  std::int32_t prompt_tokens = 0;  ///< where the prompt ends: output position 0 is this index
  std::int32_t known_tokens = 0;   ///< prompt and, after a recompute, the output so far
  std::int32_t max_tokens = 0;     ///< rows with kFromLast never make it longer; 0: it has no such rows
  std::int32_t proposes = 0;       ///< with max_tokens: most draft tokens of its next row that a result says
  Sampling sampling{};
  Span<TokenId> stop_ids{};  ///< cannot be sampled before min_tokens; the engine does the stopping
  Span<LogitBias> logit_bias{};
  Span<TokenId> prediction{};  ///< what the client takes the answer to be like, for drafts
};

/// Known token ids [position, position + ids.count) of a sequence.
struct TokenRun {
  SlotRef slot{};
  std::int32_t position = 0;
  std::int32_t padding = 0;
  Span<TokenId> ids{};
};

/// Entries [first, first + blocks.count) of a sequence's block table.
struct BlockRun {
  SlotRef slot{};
  std::int32_t first = 0;
  std::int32_t padding = 0;
  Span<BlockId> blocks{};
};

enum RowFlags : std::uint32_t {
  kSamples = 1u << 0,  ///< its last position's logits yield the next token
  kGated = 1u << 1,    ///< with kSamples: waits for a grammar mask before it samples
  /// With kSamples: forgets what the slot has sampled behind this row's end, and samples it again.
  kAgain = 1u << 2,
  kFromLast = 1u << 3,  ///< with kSamples: begins at the last token that the slot has sampled
};

/// Tokens [position, position + tokens) of a sequence run through the model in this step. An id that no
/// TokenRun contains is the one that the slot itself sampled at that position; it never left the device.
///
/// With kFromLast the row runs the slot's last token, wherever that stands when the step begins, and up to
/// tokens - 1 draft tokens of the worker's own behind it. `position` is the highest at which it may begin. It
/// yields a token for each draft token that is what the model samples there, and the one after; none if the
/// sequence has StartSequence::max_tokens already. After one such row a sequence has no others.
/// Of a sequence that proposes, the draft tokens are the first ones that its last result has said.
/// With kFromLast and kAgain `position` is where it begins, unless the slot has fewer tokens; `tokens` is 1.
struct PlanRow {
  SlotRef slot{};
  std::int32_t position = 0;
  std::int32_t tokens = 0;
  std::uint32_t flags = 0;
  std::uint32_t padding = 0;
};

/// One step. Applied in this order: finished, started, tokens, blocks, rows.
struct StepPlan {
  Header header{};
  std::uint64_t step = 0;                 ///< rises by one; starts at 1 in every epoch
  std::uint64_t after_cache_command = 0;  ///< runs when all cache commands up to this id have ended; 0 none
  Span<SlotRef> finished{};
  Span<StartSequence> started{};
  Span<TokenRun> tokens{};
  Span<BlockRun> blocks{};
  Span<PlanRow> rows{};
};

enum class MaskForm : std::uint32_t {
  all = 0,  ///< every token is allowed; no words
  bits,     ///< ceil(vocabulary / 32) words: bit v % 32 of word v / 32 allows token v; others mean nothing
  allowed,  ///< the words are the allowed ids, ascending
  denied,   ///< the words are the ids that are not allowed, ascending
};

/// What one gated row may sample: behind its first token, or, of the masks that follow for the same row,
/// behind its first draft token, its second, … At least one token of the vocabulary is allowed.
struct RowMask {
  SlotRef slot{};
  MaskForm form = MaskForm::all;
  Span<std::uint32_t> words{};
  std::uint32_t more = 0;  ///< masks of the row that follow this one
  /// Of a row's last mask: what the form forces from there on, cut into tokens as it most likely is. Up to
  /// 1 + Capacity::max_proposed.
  Span<TokenId> forced{};
};

/// Masks of rows of one plan. Follows the plan in the ring, in one record or in several; the step samples
/// when each of its gated rows has its masks: at least one, at most PlanRow::tokens with kFromLast, else one.
/// It yields at most as many tokens. Not answered.
struct StepMasks {
  Header header{};
  std::uint64_t step = 0;  ///< the plan's
  Span<RowMask> rows{};
};

// ----------------------------------------------------------------------------------- cache ring

/// Blocks of the KV memory, of the swap space and of a peer's KV memory are counted separately, each from 0.
enum class CacheOp : std::uint32_t {
  copy_blocks = 1,  ///< from KV block to KV block
  swap_out,         ///< from KV block to swap block
  swap_in,          ///< from swap block to KV block
  peer_in,          ///< from a KV block of another instance to KV block
};

struct BlockCopy {
  BlockId from = 0;
  BlockId to = 0;
};

/// Ids rise by one in the order of arrival; they start at 1 in every epoch. A command runs when all commands
/// up to `after` have ended. Apart from that, commands may run and end in any order.
struct CacheCommand {
  Header header{};
  std::uint64_t id = 0;
  std::uint64_t after = 0;  ///< below id; 0 none
  CacheOp op = CacheOp::copy_blocks;
  std::uint32_t peer = 0;    ///< of peer_in: index of the other instance
  std::uint64_t memory = 0;  ///< likewise: the life of its KV memory; the copies fail when it has another
  Span<BlockCopy> copies{};
};

struct CacheDone {
  Header header{};
  std::uint64_t id = 0;
  std::uint32_t failed = 0;  ///< 1: the contents of the targets are unknown
  std::uint32_t padding = 0;
  std::int64_t started_ns = 0;  ///< monotonic clock; of the copies, without the time that the command waited
  std::int64_t finished_ns = 0;
};

struct HeldSequence {
  SlotRef slot{};
  RequestKey key{};
  std::int32_t tokens = 0;
  std::int32_t padding = 0;
};

/// What the worker still holds from the previous epoch; empty from a new process.
struct Inventory {
  Header header{};
  std::uint32_t old_epoch = 0;
  std::uint32_t padding = 0;
  Span<HeldSequence> sequences{};
};

/// A message between the front and an engine, or a piece of one that is too long for a record
/// (actors/link/link.h).
struct Message {
  Header header{};
  std::uint64_t number = 0;  ///< of the record, among those of its direction in this epoch, from 1
  std::uint64_t tag = 0;     ///< means what the type says
  std::uint32_t type = 0;    ///< troupe::MessageType
  std::uint32_t first = 0;   ///< where the piece begins in the message
  std::uint32_t total = 0;   ///< bytes of the message
  std::uint32_t padding = 0;
  Span<std::byte> bytes{};
};

template <class R>
inline constexpr RecordKind kKindOf = RecordKind{};
template <>
inline constexpr RecordKind kKindOf<Hello> = RecordKind::hello;
template <>
inline constexpr RecordKind kKindOf<StepPlan> = RecordKind::step_plan;
template <>
inline constexpr RecordKind kKindOf<StepResult> = RecordKind::step_result;
template <>
inline constexpr RecordKind kKindOf<CacheCommand> = RecordKind::cache_command;
template <>
inline constexpr RecordKind kKindOf<CacheDone> = RecordKind::cache_done;
template <>
inline constexpr RecordKind kKindOf<Inventory> = RecordKind::inventory;
template <>
inline constexpr RecordKind kKindOf<StepMasks> = RecordKind::step_masks;
template <>
inline constexpr RecordKind kKindOf<StepEnd> = RecordKind::step_end;
template <>
inline constexpr RecordKind kKindOf<Message> = RecordKind::message;
template <>
inline constexpr RecordKind kKindOf<SequenceMedia> = RecordKind::sequence_media;
template <>
inline constexpr RecordKind kKindOf<EncodeMedia> = RecordKind::encode_media;
template <>
inline constexpr RecordKind kKindOf<MediaDone> = RecordKind::media_done;

template <class T>
concept Plain = std::is_trivially_copyable_v<T> && alignof(T) <= kAlignment;

static_assert(sizeof(Header) == 16 && sizeof(Sampling) == 56 && sizeof(PlanRow) == 24);
static_assert(sizeof(StartSequence) == 120 && sizeof(TokenRun) == 24 && sizeof(BlockRun) == 24);
static_assert(sizeof(StepPlan) == 72 && sizeof(StepResult) == 72 && sizeof(ResultRow) == 32);
static_assert(sizeof(TokenLogprobs) == 28 && sizeof(Embedding) == 16 && sizeof(CacheCommand) == 56 &&
              sizeof(CacheDone) == 48);
static_assert(sizeof(StepMasks) == 32 && sizeof(RowMask) == 32 && sizeof(StepEnd) == 32 &&
              sizeof(Message) == 56);
static_assert(sizeof(SequenceMedia) == 32 && sizeof(MediaEntry) == 24 && sizeof(EncodeMedia) == 64 &&
              sizeof(MediaDone) == 56);
static_assert(Plain<Hello> && Plain<StepPlan> && Plain<StepResult> && Plain<StartSequence> &&
              Plain<SequenceMedia> && Plain<EncodeMedia> && Plain<MediaDone> && Plain<CacheCommand> &&
              Plain<CacheDone> && Plain<Inventory> && Plain<StepMasks> && Plain<StepEnd> && Plain<Message>);

/// Builds one record in a buffer that is kept for the next: no allocation once it has grown.
/// begin(), then fill the fixed part through record() and the arrays through array(), then finish().
/// Elements that hold Spans themselves (StartSequence, TokenRun) are appended like any other after the
/// spans they name.
template <class R>
class RecordWriter {
 public:
  /// Starts a new record; the old one's memory is reused.
  void begin(std::uint32_t epoch) {
    bytes_.clear();
    grow(sizeof(R));
    R fresh{};
    fresh.header = {kKindOf<R>, 0, epoch, 0};
    std::memcpy(bytes_.data(), &fresh, sizeof(R));
  }

  /// The fixed part. Invalidated by array(): do not keep the reference.
  R& record() { return *reinterpret_cast<R*>(bytes_.data()); }

  /// Copies an array into the record and returns the Span that names it.
  template <Plain T>
  Span<T> array(std::span<const T> items) {
    if (items.empty()) return {};
    const std::size_t at = bytes_.size();
    grow(items.size_bytes());
    std::memcpy(bytes_.data() + at, items.data(), items.size_bytes());
    return {static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(items.size())};
  }
  template <Plain T>
  Span<T> array(const std::vector<T>& items) {
    return array(std::span<const T>(items));
  }

  /// Seals the record and returns its bytes, valid until the next begin().
  std::span<const std::byte> finish() {
    record().header.bytes = static_cast<std::uint32_t>(bytes_.size());
    return bytes_;
  }

  std::size_t size() const { return bytes_.size(); }

 private:
  void grow(std::size_t n) { bytes_.resize(bytes_.size() + (n + kAlignment - 1) / kAlignment * kAlignment); }
  std::vector<std::byte> bytes_;  // operator new aligns to 16
};

/// Checked, non-owning view of one record. open() checks the header; arrays are checked when they are read.
class RecordView {
 public:
  /// False when the bytes are too few, misaligned, or their header disagrees with their number.
  static bool open(std::span<const std::byte> bytes, RecordView& out) {
    if (bytes.size() < sizeof(Header) || bytes.size() > kMaxResultBytes) return false;
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment != 0) return false;
    out.bytes_ = bytes;
    if (bytes.size() > kMaxRecordBytes && out.header().kind != RecordKind::step_result) return false;
    return out.header().bytes == bytes.size();
  }

  const Header& header() const { return *reinterpret_cast<const Header*>(bytes_.data()); }

  /// The record as R, or null when it is of another kind or too short.
  template <class R>
  const R* as() const {
    if (header().kind != kKindOf<R> || bytes_.size() < sizeof(R)) return nullptr;
    return reinterpret_cast<const R*>(bytes_.data());
  }

  /// True when the span lies inside the record and is aligned.
  template <class T>
  bool holds(Span<T> s) const {
    return s.count == 0 || (s.offset >= sizeof(Header) && s.offset % alignof(T) == 0 &&
                            s.offset <= bytes_.size() && s.count <= (bytes_.size() - s.offset) / sizeof(T));
  }

  /// The array, or an empty one when holds() is false.
  template <class T>
  std::span<const T> array(Span<T> s) const {
    if (s.count == 0 || !holds(s)) return {};
    return {reinterpret_cast<const T*>(bytes_.data() + s.offset), s.count};
  }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace troupe::wire
