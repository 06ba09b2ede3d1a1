#pragma once
// The engine's part towards an executor, for measuring steps offline: `batch` sequences of one length,
// prefilled and then decoded in step, with two plans in flight as the engine has them. An error ends its use.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ipc/wire.h"
#include "model/executor.h"

namespace troupe::bench {

class StepFeed {
 public:
  /// The executor forgets what it held, and is in `epoch` from now on.
  explicit StepFeed(Executor& executor, std::uint32_t epoch = 1)
      : executor_(executor), capacity_(executor.capacity()) {
    executor.reset(epoch);
  }

  /// Of a rank, before anything else: waits until all ranks have met in the epoch. Each has a feed, which is
  /// called alike. timeout when a rank has not come for 60 s.
  Status meet_ranks();

  /// Ends what runs, then runs one prompt of `tokens` random ids in steps as large as the executor takes, and
  /// waits for its first token. Seconds from the first plan to the last result.
  Result<double> prefill(int tokens);

  /// Ends what runs and puts `batch` sequences in place, each with `context` tokens before the next one and
  /// room for `output` more. A few prompts are run; the other sequences get copies of their blocks, and each
  /// has a last token of its own, so that no two rows are alike. invalid_argument when the executor cannot
  /// hold them.
  Status place(int batch, int context, int output);

  /// Runs `steps` decode steps of all placed sequences. The times, in seconds, between one result and the
  /// next: steps - 1 of them. invalid_argument, from the executor, when that is more than there is room for.
  /// With `drafts` every row verifies up to so many draft tokens; from then on decode() must, 0 or more
  /// (`drafting`).
  Result<std::vector<double>> decode(int steps) { return decode(steps, 0, false); }
  Result<std::vector<double>> decode_drafting(int steps, int drafts) { return decode(steps, drafts, true); }

  /// Tokens that the results of the last decode() but the first have yielded, of all sequences.
  std::int64_t yielded() const { return yielded_; }
  /// Draft tokens that these steps have verified.
  std::int64_t drafted() const { return drafted_; }

  /// From now on the rows of decode() wait for masks, which come when the result before is there and `row_s`
  /// seconds for each row have passed. They allow about half of the vocabulary. Below 0: no row waits.
  void gate(double row_s) { row_mask_s_ = row_s; }

  /// From now on decode() keeps copies to the swap space and back under way beside its steps, two commands of
  /// `blocks` blocks in each direction, on the last blocks of the KV memory. 0: waits for those under way,
  /// and there are none any more. invalid_argument when there are too few blocks that no placed sequence has.
  Status swap_beside(std::int32_t blocks);
  /// Blocks whose copies have ended, out and in together.
  std::int64_t swapped() const { return swapped_; }

  /// Seconds of host time that each submit() of the last decode() took.
  const std::vector<double>& submit_s() const { return submit_s_; }

  /// When a step began and ended on its device, as its result says.
  struct Span {
    std::int64_t started_ns = 0;
    std::int64_t finished_ns = 0;
  };
  /// Of the steps of the last decode(), in order.
  const std::vector<Span>& spans() const { return spans_; }

 private:
  struct FedSequence {
    SlotRef slot{};
    std::int32_t position = 0;  // of the next token to run
    BlockId first_block = 0;
    std::int32_t blocks = 0;
    std::int32_t in_flight = 0;  // most tokens that drafting rows may still yield
  };

  Result<std::vector<double>> decode(int steps, int drafts, bool drafting);
  void add_rows(int drafts, bool drafting);
  void count_row(const wire::ResultRow& row);
  void begin();
  void end_all();
  void start(std::int32_t slot, BlockId first_block, std::int32_t blocks, const std::vector<TokenId>& ids);
  Status finish_plan();
  Status run_prompt(std::size_t sequence, int tokens, bool samples);
  Status send_masks(std::uint64_t step);
  Status start_swaps();
  bool take_swap(const wire::CacheDone& done);
  Status copy_blocks(const std::vector<wire::BlockCopy>& copies);
  Status run_prompts(const std::vector<std::vector<TokenId>>& prompts, std::int32_t each);
  Status copy_prompts(std::size_t prompts, int batch, int context, std::int32_t each);
  Status start_batch(const std::vector<std::vector<TokenId>>& prompts, int batch, std::int32_t each);
  Status check_fit(int batch, std::int64_t tokens) const;
  Status submit(std::span<const std::byte> record);
  Status await();
  Status drain(int left);  // awaits until no more than that is pending
  TokenId random_id();
  std::vector<TokenId> random_ids(int count);

  Executor& executor_;
  const wire::Capacity capacity_;
  wire::RecordWriter<wire::StepPlan> plan_;
  std::vector<std::byte> out_;
  std::vector<FedSequence> sequences_;
  std::vector<SlotRef> ended_;
  std::vector<wire::StartSequence> started_;
  std::vector<wire::TokenRun> tokens_;
  std::vector<wire::BlockRun> blocks_;
  std::vector<wire::PlanRow> rows_;
  std::vector<double> submit_s_;
  std::vector<Span> spans_;
  int rows_in_flight_ = 0;  // most tokens that a drafting row may yield; 0: rows do not draft
  std::int64_t yielded_ = 0;
  std::int64_t drafted_ = 0;
  std::uint64_t step_ = 0;
  std::uint64_t command_ = 0;
  std::uint64_t last_copy_ = 0;                       // the last command that plans depend on
  std::int32_t beside_ = 0;                           // blocks of a swap command
  std::vector<std::pair<std::uint64_t, int>> swaps_;  // under way: id, and which of the four
  std::int64_t swapped_ = 0;
  std::uint32_t generation_ = 0;
  double row_mask_s_ = -1;
  wire::RecordWriter<wire::StepMasks> masks_;
  std::vector<std::uint32_t> mask_;
  std::vector<wire::RowMask> row_masks_;
  std::uint64_t random_ = 0x9e3779b97f4a7c15u;
  int pending_ = 0;
};

}  // namespace troupe::bench
