// Drafts whose inputs are in device memory alone: captured as graphs, with padding, they leave the bits that
// draft_rows() and draft_again() leave.
#include <cstring>

#include "gpu/cuda_graph.h"
#include "model/support/draft_layer.h"

namespace troupe::model {
namespace {

using test::DraftSequence;

constexpr int kSequences = 4, kEach = 4, kRows = kSequences * kEach;  // of a graph

/// An array with an address that stays.
template <class T>
class DeviceArray {
 public:
  DeviceArray(Cuda& device, std::size_t count)
      : device_(device), buffer_(*Buffer<Cuda>::make(device, count * sizeof(T), "an array")) {}
  T* data() const { return static_cast<T*>(buffer_.data()); }
  void set(const std::vector<T>& values) {
    ASSERT_LE(values.size() * sizeof(T), buffer_.bytes());
    device_.upload(buffer_.data(), values.data(), values.size() * sizeof(T));
  }

 private:
  Cuda& device_;
  Buffer<Cuda> buffer_;
};

/// What a kernel would write for one run.
struct HostDrafts {
  std::vector<TokenId> tokens = std::vector<TokenId>(kRows);
  std::vector<std::int32_t> positions = std::vector<std::int32_t>(kRows);
  std::vector<std::int32_t> from = std::vector<std::int32_t>(kRows);
  std::vector<kernels::KvSlot> slots = std::vector<kernels::KvSlot>(kRows, {kernels::kPaddingBlock, 0});
  std::vector<kernels::SequenceRows> sequences = std::vector<kernels::SequenceRows>(kSequences);
  std::vector<std::int32_t> picks = std::vector<std::int32_t>(kSequences);
  std::vector<kernels::SampleRow> samples = std::vector<kernels::SampleRow>(kSequences, {.logits_row = -1});
  std::vector<std::int32_t> keep_to = std::vector<std::int32_t>(kSequences, -1);
  std::vector<std::int32_t> keep_from = std::vector<std::int32_t>(kSequences);
  std::vector<std::int32_t> fill_to = std::vector<std::int32_t>(kRows, -1);
  std::vector<std::int32_t> fill_from = std::vector<std::int32_t>(kRows);

  /// `each`: rows from one sequence's first to the next one's.
  explicit HostDrafts(int each = kEach) {
    for (int s = 0; s < kSequences; ++s) sequences[std::size_t(s)].row = s * each;
  }
};

/// The arrays of draft() and of draft_again(), and the graphs that read them. Made behind a step that asks
/// for more working memory, which must not move; padding leaves the step's hidden rows as they are.
class GraphDrafts {
 public:
  GraphDrafts(Cuda& device, Decoder<Cuda>& decoder) : device_(device), decoder_(decoder) {
    put(HostDrafts());
    decoder.draft(first());  // loads the kernels and takes working memory
    put(HostDrafts(1));
    decoder.draft_again(again());
    device.sync();
    graphs_[0] = CudaGraph::capture(device, [&] { decoder.draft(first()); });
    graphs_[1] = CudaGraph::capture(device, [&] { decoder.draft_again(again()); });
  }

  void put(const HostDrafts& host) {
    tokens_.set(host.tokens);
    positions_.set(host.positions);
    from_.set(host.from);
    slots_.set(host.slots);
    sequences_.set(host.sequences);
    picks_.set(host.picks);
    samples_.set(host.samples);
    keep_to_.set(host.keep_to);
    keep_from_.set(host.keep_from);
    fill_to_.set(host.fill_to);
    fill_from_.set(host.fill_from);
  }
  TokenId* tokens() const { return tokens_.data(); }

  std::vector<kernels::SampleResult> launch(int graph) {
    graphs_[graph].launch(device_);
    std::vector<kernels::SampleResult> results(kSequences);
    device_.download(results.data(), decoder_.draft_results(), kSequences * sizeof(kernels::SampleResult));
    device_.sync();
    return results;
  }

 private:
  DeviceDrafts first() const {
    return {
        .batch = {.sequences = sequences_.data(), .slots = slots_.data(), .count = kSequences, .rows = kRows},
        .tokens = tokens_.data(),
        .positions = positions_.data(),
        .from = from_.data(),
        .picks = picks_.data(),
        .samples = samples_.data(),
        .count = kSequences,
        .keep = {keep_to_.data(), keep_from_.data(), kSequences},
        .fill = {fill_to_.data(), fill_from_.data(), kRows}};
  }
  DeviceDrafts again() const {
    DeviceDrafts drafts = first();
    drafts.batch.rows = kSequences;
    drafts.batch.most_tokens = 1;
    drafts.picks = nullptr;
    drafts.keep = drafts.fill = {};
    return drafts;
  }

  Cuda& device_;
  Decoder<Cuda>& decoder_;
  DeviceArray<TokenId> tokens_{device_, kRows};
  DeviceArray<std::int32_t> positions_{device_, kRows}, from_{device_, kRows};
  DeviceArray<kernels::KvSlot> slots_{device_, kRows};
  DeviceArray<kernels::SequenceRows> sequences_{device_, kSequences};
  DeviceArray<std::int32_t> picks_{device_, kSequences};
  DeviceArray<kernels::SampleRow> samples_{device_, kSequences};
  DeviceArray<std::int32_t> keep_to_{device_, kSequences}, keep_from_{device_, kSequences};
  DeviceArray<std::int32_t> fill_to_{device_, kRows}, fill_from_{device_, kRows};
  CudaGraph graphs_[2];
};

class DeviceDraftGraphs : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
    device_ = std::make_unique<Cuda>(CudaOptions{.batch_invariant = true});
    auto files = test::open_with_draft("gqa3_tied");
    ASSERT_TRUE(files.ok()) << files.status().message;
    files_ = std::move(*files);
  }
  std::unique_ptr<Decoder<Cuda>> make() {
    auto decoder = test::make_decoder(*device_, files_.spec, files_.formats, files_.map);
    EXPECT_TRUE(decoder.ok()) << decoder.status().message;
    return std::move(*decoder);
  }
  std::vector<DraftSequence> sequences() const {
    const std::vector<TokenId> ids = test::load_draft_golden("gqa3_tied").ids;
    std::vector<TokenId> other(ids.rbegin(), ids.rend());
    return {{ids, {6, 0}, 5}, {other, {3, 4}, 1}, {ids, {7, 2}, 2}};
  }
  static kernels::SampleRow sample_of(std::size_t s, std::uint32_t position) {
    return {.temperature = 0.8f, .seed = 11 + s, .position = position, .logprobs = 5};
  }

  /// Prompts, and a step that verifies three drafts of each.
  StepBatch verify(Decoder<Cuda>& decoder, std::vector<DraftSequence>& sequences) {
    const std::int32_t prompts[] = {61, 30, 1};
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      StepBatch batch;
      sequences[s].add_to(batch, prompts[s]);
      test::run_layers(decoder, batch);
      const DraftRows rows = test::after(sequences[s], prompts[s], sequences[s].next());
      auto results = test::results_of(1);
      decoder.draft_rows(batch, {&rows, 1}, results);
    }
    StepBatch batch;
    for (DraftSequence& sequence : sequences) sequence.add_to(batch, kEach);
    test::run_layers(decoder, batch);
    for (std::size_t s = 0; s < sequences.size(); ++s) sequences[s].done -= kEach - kAccepted[s];
    return batch;
  }

  /// What later steps make of KV memory and of the rows that were kept.
  std::vector<float> go_on(Decoder<Cuda>& decoder, std::vector<DraftSequence> sequences) {
    std::vector<float> all;
    const auto run = [&](DraftSequence& sequence, bool carried) {
      StepBatch batch;
      sequence.add_to(batch, 3);
      test::run_layers(decoder, batch);
      DraftRows rows = test::after(sequence, 3, sequence.next());
      rows.carried = carried;
      std::vector<float> logits(std::size_t(files_.spec.vocab));
      auto results = test::results_of(1);
      decoder.draft_rows(batch, {&rows, 1}, results, logits);
      all.insert(all.end(), logits.begin(), logits.end());
    };
    for (DraftSequence& sequence : sequences) run(sequence, false);
    DraftSequence behind{sequences[0].ids, {sequences[0].blocks[0], 1}, 4};
    behind.done = kernels::kBlockTokens;
    run(behind, true);
    return all;
  }

  static constexpr std::int32_t kAccepted[] = {4, 2, 1};
  std::unique_ptr<Cuda> device_;
  ModelFiles files_;
};

void expect_equal(const kernels::SampleResult& a, const kernels::SampleResult& b) {
  EXPECT_EQ(a.token, b.token);
  EXPECT_EQ(a.error, b.error);
  EXPECT_EQ(a.logprob, b.logprob);
  ASSERT_EQ(a.top_count, b.top_count);
  for (int i = 0; i < a.top_count; ++i) {
    EXPECT_EQ(a.top[i].token, b.top[i].token);
    EXPECT_EQ(a.top[i].logprob, b.top[i].logprob);
  }
}

INSTANTIATE_TEST_SUITE_P(Rejected, DeviceDraftGraphs, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "RowsRun" : "RowsArePadding"; });

// The third sequence drafts nothing, and the fourth is padding.
TEST_P(DeviceDraftGraphs, LeaveTheBitsOfDraftRows) {
  const bool rejected_run = GetParam();
  // By draft_rows().
  const auto staged = make();
  std::vector<DraftSequence> own = sequences();
  const StepBatch batch = verify(*staged, own);
  std::vector<DraftRows> rows;
  for (std::size_t s = 0; s < own.size(); ++s) {
    rows.push_back(test::after(own[s], kAccepted[s], own[s].next(), std::int32_t(s)));
    rows.back().sample = sample_of(s, 7);
  }
  auto expected = test::results_of(3), expected_again = test::results_of(2);
  staged->draft_rows(batch, rows, expected);
  std::vector<DraftAgain> more;
  for (std::size_t s = 0; s < 2; ++s) more.push_back({std::int32_t(s), expected[s].token, sample_of(s, 8)});
  staged->draft_again(more, expected_again);
  std::vector<std::byte> expected_row(staged->hidden_bytes());
  staged->save_hidden(own[0].slot, expected_row);
  const std::vector<float> expected_later = go_on(*staged, own);

  // From device memory.
  const auto decoder = make();
  std::vector<DraftSequence> same = sequences();
  (void)verify(*decoder, same);
  GraphDrafts graphs(*device_, *decoder);
  std::vector<std::byte> before(decoder->hidden_bytes()), after(before.size());
  decoder->save_hidden(same[1].slot, before);
  HostDrafts host;
  std::vector<DeviceArray<BlockId>> tables;
  for (std::size_t s = 0; s < same.size(); ++s) {
    tables.emplace_back(*device_, same[s].blocks.size());
    tables.back().set(same[s].blocks);
    const std::int32_t accepted = kAccepted[s], first = std::int32_t(s) * kEach,
                       position = same[s].done - accepted;
    for (std::int32_t j = 0; j < (rejected_run ? kEach : accepted); ++j) {
      const auto r = std::size_t(first + j);
      const std::int32_t p = position + j + 1;
      host.tokens[r] = j < accepted ? same[s].ids[std::size_t(p)] : 9;
      host.positions[r] = p;
      host.from[r] = std::int32_t(r);
      host.slots[r] = {same[s].blocks[std::size_t(p / kernels::kBlockTokens)], p % kernels::kBlockTokens};
      if (j < accepted && p % kernels::kBlockTokens == 0) {
        host.fill_to[r] = same[s].blocks[std::size_t(p / kernels::kBlockTokens - 1)];
        host.fill_from[r] = std::int32_t(r);
      }
    }
    host.sequences[s] = {tables[s].data(), position + 1, rejected_run ? kEach : accepted, first};
    host.picks[s] = first + accepted - 1;
    if (s < 2) {
      host.samples[s] = sample_of(s, 7);
      host.samples[s].logits_row = std::int32_t(s);
    }
    host.keep_from[s] = first + accepted - 1;
  }
  host.keep_to[0] = std::int32_t(same[0].slot);
  graphs.put(host);
  const auto results = graphs.launch(0);
  for (std::size_t s = 0; s < 2; ++s) expect_equal(results[s], expected[s]);
  decoder->save_hidden(same[1].slot, after);
  EXPECT_EQ(after, before) << "a slot that was left out";
  decoder->save_hidden(same[0].slot, after);
  EXPECT_EQ(after, expected_row);

  HostDrafts next(1);
  for (std::size_t s = 0; s < 2; ++s) {
    const std::int32_t p = same[s].done + 1;
    next.tokens[s] = results[s].token;
    next.positions[s] = p;
    next.from[s] = std::int32_t(s);
    next.slots[s] = {same[s].blocks[std::size_t(p / kernels::kBlockTokens)], p % kernels::kBlockTokens};
    next.sequences[s] = {tables[s].data(), p, 1, std::int32_t(s)};
    next.samples[s] = sample_of(s, 8);
    next.samples[s].logits_row = std::int32_t(s);
  }
  graphs.put(next);
  const auto again = graphs.launch(1);
  for (std::size_t s = 0; s < 2; ++s) expect_equal(again[s], expected_again[s]);
  EXPECT_EQ(go_on(*decoder, same), expected_later);
}

// The drafted token goes where SampleRow::next says: the next run of a graph may read it there.
TEST_P(DeviceDraftGraphs, TheNextRunReadsTheDraftWhereSamplingHasPutIt) {
  const auto decoder = make();
  std::vector<DraftSequence> own = sequences();
  (void)verify(*decoder, own);
  GraphDrafts graphs(*device_, *decoder);
  const DraftSequence& first = own[0];
  DeviceArray<BlockId> table(*device_, first.blocks.size());
  table.set(first.blocks);
  HostDrafts host;
  host.tokens[0] = first.ids[std::size_t(first.done)];
  host.positions[0] = first.done;
  host.from[0] = kAccepted[0] - 1;
  host.slots[0] = {first.blocks[std::size_t(first.done / kernels::kBlockTokens)],
                   first.done % kernels::kBlockTokens};
  host.sequences[0] = {table.data(), first.done, 1, 0};
  host.samples[0] = {.logits_row = 0, .temperature = 0, .next = graphs.tokens()};
  graphs.put(host);
  const TokenId drafted = graphs.launch(0)[0].token;
  TokenId read = -1;
  device_->download(&read, graphs.tokens(), sizeof read);
  device_->sync();
  EXPECT_EQ(read, drafted);
}

}  // namespace
}  // namespace troupe::model
