// What drafts bring where answers are held to a form: streams of JSON objects of one schema on a GPU, with
// dummy weights. The masks are made as GRAMMAR makes them and force valid JSON, whatever the logits are.
// Draft tokens are accepted by the toss of a coin where the form allows them, so tokens a second are
// synthetic. They stand beside those of the same streams without speculation.
//
//   cuda_forms_bench [--json] [--dir MODELS] [--model NAME] [--method mtp|ngram] [--drafts N] [--acceptance
//   P]
//   [--batch N]… [--context N] [--steps N]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/gpu_bench.h"
#include "bench/report.h"
#include "model/checkpoint/model_files.h"
#include "model/cuda/executor.h"
#include "tests/grammar/support/test_vocabulary.h"
#include "tests/model/support/plans.h"
#include "text/grammar/constraint.h"

namespace troupe::bench {
namespace {

using grammar::Constraint;
using grammar::ConstraintSpec;
using grammar::TokenMask;
using model::test::Masks;
using model::test::Plans;

constexpr const char* kSchema = R"({"type": "object",
  "properties": {"title": {"type": "string"}, "pages": {"type": "integer"},
                 "authors": {"type": "array", "items": {"type": "string"}}, "abstract": {"type": "string"}},
  "required": ["title", "pages", "authors", "abstract"], "additionalProperties": false})";
constexpr int kWarmUpSteps = 16;

struct Arguments {
  std::string directory = TROUPE_BENCH_MODELS, model = "ERNIE-4.5-21B-A3B", method = "mtp";
  int drafts = 1, context = 512, steps = 200;
  double acceptance = 0.8;
  std::vector<int> batches;
};

Arguments parse(int argc, char** argv) {
  Arguments got;
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--json") continue;
    const char* value = argv[++i];
    if (flag == "--dir") got.directory = value;
    if (flag == "--model") got.model = value;
    if (flag == "--method") got.method = value;
    if (flag == "--drafts") got.drafts = std::atoi(value);
    if (flag == "--acceptance") got.acceptance = std::atof(value);
    if (flag == "--batch") got.batches.push_back(std::atoi(value));
    if (flag == "--context") got.context = std::atoi(value);
    if (flag == "--steps") got.steps = std::atoi(value);
  }
  if (got.batches.empty()) got.batches = {8};
  return got;
}

std::shared_ptr<const ConstraintSpec> make_form(int vocabulary) {
  const grammar::Vocabulary tokens = testing::test_vocabulary(vocabulary);
  const grammar::TokenTable table(tokens);
  const auto form = grammar::compile(table, {grammar::Source::Kind::json_schema, false, kSchema}, 4);
  TROUPE_CHECK(form.ok());
  auto spec = std::make_shared<ConstraintSpec>();
  spec->form = *form;
  spec->stop_ids = tokens.stop_ids;
  spec->vocabulary = vocabulary;
  return spec;
}

wire::MaskForm form_of(TokenMask::Form form) {
  switch (form) {
    case TokenMask::Form::all: return wire::MaskForm::all;
    case TokenMask::Form::bits: return wire::MaskForm::bits;
    case TokenMask::Form::allowed: return wire::MaskForm::allowed;
    case TokenMask::Form::denied: return wire::MaskForm::denied;
  }
  return wire::MaskForm::all;
}

/// Streams that are decoded together with two plans in flight. `proposes`: 0 without speculation.
class Streams {
 public:
  Streams(Executor& executor, std::shared_ptr<const ConstraintSpec> form, int proposes)
      : executor_(executor), form_(std::move(form)), proposes_(proposes) {
    executor.reset(1);
  }

  /// The prompts run, and each stream has its first token.
  Status start(int batch, int context, int output) {
    const std::int32_t longest = context + output, block = executor_.capacity().block_tokens;
    const std::int32_t each = (longest + block - 1) / block;
    if (each * batch > executor_.capacity().kv_blocks) return invalid("too few KV blocks");
    for (int i = 0; i < batch; ++i) {
      const SlotRef slot{static_cast<std::uint32_t>(i), 1};
      std::vector<TokenId> prompt(static_cast<std::size_t>(context));
      for (std::size_t t = 0; t < prompt.size(); ++t)
        prompt[t] = static_cast<TokenId>((t * 31 + slot.slot) % 1000);
      std::vector<BlockId> blocks(static_cast<std::size_t>(each));
      std::iota(blocks.begin(), blocks.end(), i * each);
      plans_.start(slot, context, context, {.seed = slot.slot + 1u}, {}, {}, proposes_ > 0 ? longest : 0,
                   proposes_);
      plans_.ids(slot, 0, prompt).blocks(slot, 0, blocks).gated_row(slot, 0, context);
      streams_.push_back({slot, Constraint(form_), context});
      const std::span one(&streams_.back(), 1);
      one.front().in_flight = row_tokens_ = 1;
      if (Status s = executor_.submit(plans_.plan()); !s.ok()) return s;
      if (Status s = send_masks(one); !s.ok()) return s;
      if (Status s = take(one); !s.ok()) return s;
    }
    return {};
  }

  /// Runs so many steps, each row with up to `drafts` draft tokens. Tokens a second.
  Result<double> decode(int steps, int drafts) {
    tokens_ = drafted_ = rows_ = 0;
    const TimePoint begin = Clock::now();
    row_tokens_ = 1 + drafts;
    int sent = 0;
    for (int done = 0; done < steps; ++done) {
      for (; sent < steps && sent < done + 2; ++sent) {
        for (Stream& one : streams_) add_row(one);
        if (Status s = executor_.submit(plans_.plan()); !s.ok()) return s;
      }
      if (Status s = send_masks(streams_); !s.ok()) return s;
      if (Status s = take(streams_); !s.ok()) return s;
    }
    return static_cast<double>(tokens_) / std::chrono::duration<double>(Clock::now() - begin).count();
  }

  double yielded_a_row() const { return static_cast<double>(tokens_) / static_cast<double>(rows_); }
  double drafted_a_row() const { return static_cast<double>(drafted_) / static_cast<double>(rows_); }

 private:
  struct Stream {
    SlotRef slot{};
    Constraint constraint;
    int known = 0;
    int in_flight = 0;                // most tokens of its rows
    std::vector<TokenId> proposed{};  // by its last result
    TokenMask mask{};
    grammar::Ahead ahead{};
  };

  void add_row(Stream& one) {
    const int position = one.known + one.in_flight - 1;
    if (proposes_ > 0) {
      plans_.row_from_last(one.slot, position, row_tokens_, wire::kGated);
    } else {
      plans_.gated_row(one.slot, position, 1);
    }
    one.in_flight += row_tokens_;
  }

  /// Of the oldest step in flight, which has a row of each of the streams.
  Status send_masks(std::span<Stream> streams) {
    ++masked_;
    for (Stream& one : streams) {
      one.constraint.mask(one.mask);
      const auto most = std::min(one.proposed.size(), static_cast<std::size_t>(row_tokens_ - 1));
      one.ahead.clear();
      if (proposes_ > 0) {
        one.constraint.look_ahead(std::span(one.proposed).first(most),
                                  static_cast<std::size_t>(1 + proposes_), one.mask,
                                  thread_cpu_ns() + 1'000'000, one.ahead);
      }
      for (std::size_t i = 0; i <= one.ahead.masks.size(); ++i) {
        const TokenMask& mask = i == 0 ? one.mask : one.ahead.masks[i - 1];
        const std::size_t more = one.ahead.masks.size() - i;
        masks_.add(one.slot, form_of(mask.form), mask.words, static_cast<std::uint32_t>(more),
                   more == 0 ? one.ahead.forced : std::vector<TokenId>{});
      }
    }
    return executor_.submit(masks_.masks(masked_));
  }

  Status take(std::span<Stream> streams) {
    const TimePoint deadline = Clock::now() + std::chrono::seconds(60);
    for (;;) {
      const Result<bool> got = executor_.poll(out_, deadline);
      if (!got.ok()) return got.status();
      if (*got) break;
      if (Clock::now() > deadline) return failure(Code::timeout, "the device has not answered for 60 s");
    }
    const wire::RecordView view = model::test::open_view(out_);
    const auto* result = view.as<wire::StepResult>();
    TROUPE_CHECK(result != nullptr);
    for (const wire::ResultRow& row : view.array(result->rows)) {
      if (row.error != wire::RowError::none) return failure(Code::internal, "a row has failed");
      Stream& one = streams.size() == 1 ? streams.front() : streams[row.slot.slot];
      const auto ids = view.array(result->tokens).subspan(static_cast<std::size_t>(row.first));
      for (const TokenId id : ids.first(static_cast<std::size_t>(row.count))) {
        one.constraint.accept(id);
        if (one.constraint.failed()) return failure(Code::internal, "a token that the form does not allow");
        if (one.constraint.ended()) one.constraint = Constraint(form_);  // the next object
      }
      const auto said =
          ids.subspan(static_cast<std::size_t>(row.count), static_cast<std::size_t>(row.proposed));
      one.proposed.assign(said.begin(), said.end());
      one.known += row.count;
      one.in_flight -= row_tokens_;
      tokens_ += row.count;
      drafted_ += row.drafts;
      ++rows_;
    }
    return {};
  }

  Executor& executor_;
  const std::shared_ptr<const ConstraintSpec> form_;
  const int proposes_;
  Plans plans_;
  Masks masks_;
  std::vector<Stream> streams_;
  std::vector<std::byte> out_;
  std::uint64_t masked_ = 0;  // steps whose masks were sent
  int row_tokens_ = 1;        // most tokens of each row
  std::int64_t tokens_ = 0, drafted_ = 0, rows_ = 0;
};

Result<std::unique_ptr<Executor>> open(const Arguments& arguments, bool speculates) {
  config::Options options;
  options.model.directory = arguments.directory + "/" + arguments.model;
  options.model.load_choices = config::LoadChoice::dummy;
  options.scheduler.max_num_seqs = *std::ranges::max_element(arguments.batches);
  if (speculates) {
    options.speculation = {.method = config::DraftMethod::ngram,
                           .tokens = arguments.drafts,
                           .synthetic_acceptance = arguments.acceptance};
    if (arguments.method == "mtp") {
      options.speculation.method = config::DraftMethod::mtp;
      options.speculation.mtp_steps = arguments.drafts;
    }
  }
  auto files = model::open_model(options.model, {}, options.speculation);
  if (!files.ok()) return files.status();
  if (Status s = files->choose(config::Device::cuda, options.quantization); !s.ok()) return s;
  return model::make_cuda_executor(*files, options);
}

Status run(const Arguments& arguments, Report& report) {
  std::shared_ptr<const ConstraintSpec> form;
  std::vector<double> plain;
  for (const bool speculates : {false, true}) {
    auto executor = open(arguments, speculates);
    if (!executor.ok()) return executor.status();
    if (form == nullptr) form = make_form((*executor)->capacity().vocab_size);
    for (std::size_t b = 0; b < arguments.batches.size(); ++b) {
      const int batch = arguments.batches[b];
      const std::string name = arguments.model + ".form.b" + std::to_string(batch);
      for (const int drafts : speculates ? std::vector<int>{0, arguments.drafts} : std::vector<int>{0}) {
        Streams streams(**executor, form, speculates ? arguments.drafts : 0);
        const int output = (arguments.steps + kWarmUpSteps + 4) * (1 + drafts);
        if (Status s = streams.start(batch, arguments.context, output); !s.ok()) return s;
        if (auto warm = streams.decode(kWarmUpSteps, drafts); !warm.ok()) return warm.status();
        const auto rate = streams.decode(arguments.steps, drafts);
        if (!rate.ok()) return rate.status();
        if (!speculates) {
          plain.push_back(*rate);
          report.row({name + ".plain", *rate, "tok/s"});
          continue;
        }
        report.row({name + ".drafts" + std::to_string(drafts), *rate, "tok/s", plain[b],
                    (drafts == 0  ? 0.98
                     : batch == 8 ? 1.1
                                  : 0) *
                        plain[b]});
        if (drafts > 0) {
          report.row({name + ".verified_a_row", streams.drafted_a_row(), "tokens"});
          report.row({name + ".yielded_a_row", streams.yielded_a_row(), "tokens"});
        }
      }
    }
  }
  return {};
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) {
  using namespace troupe;
  if (!bench::gpu_is_there("cuda_forms")) return 0;
  bench::Report report(argc, argv);
  try {
    const Status status = bench::run(bench::parse(argc, argv), report);
    if (status.ok()) return report.all_met() ? 0 : 1;
    std::fprintf(stderr, "cuda_forms_bench: %s\n", status.message.c_str());
  } catch (const CudaError& error) {
    std::fprintf(stderr, "cuda_forms_bench: %s\n", error.what());
  }
  return 1;
}
