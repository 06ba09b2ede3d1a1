// Checks of the exchanges over GPUs that reach each other's memory. Two ranks share the one GPU, each with a
// stream of its own, so their kernels run at once and wait for each other. The links between GPUs are not
// part of it: ranks compare what came over them when they start (model/cuda/peer_exchange.h).
#include <array>

#include "kernels/check/side.h"
#include "kernels/exchange.h"

namespace troupe::kernels::check {
namespace {

constexpr int kRanks = 2;

class Ranks {
 public:
  explicit Ranks(Cuda& first, std::size_t two_steps_from = kNeverInTwoSteps)
      : second_({.ordinal = first.ordinal()}), sides_{{Side<Cuda>(first), Side<Cuda>(second_)}} {
    ExchangeTable table{};
    for (int r = 0; r < kRanks; ++r) table.inboxes[r] = side(r).room<std::byte>(exchange_inbox_bytes(kRanks));
    table.number = kFirstExchange;
    table.live = 1;
    for (int r = 0; r < kRanks; ++r) {
      groups_[static_cast<std::size_t>(r)] = {.table = side(r).put(std::vector<ExchangeTable>{table}),
                                              .stop = side(r).put(std::vector<std::uint32_t>{0}),
                                              .rank = r,
                                              .ranks = kRanks,
                                              .two_steps_from = two_steps_from};
    }
  }
  Side<Cuda>& side(int rank) { return sides_[static_cast<std::size_t>(rank)]; }
  const ExchangeGroup& group(int rank) const { return groups_[static_cast<std::size_t>(rank)]; }
  /// Launches each rank's op when all memory is there.
  template <class Op>
  void exchange(const std::array<Op, kRanks>& ops) {
    for (int r = 0; r < kRanks; ++r) side(r).device().sync();
    for (int r = 0; r < kRanks; ++r) run(side(r).device(), ops[static_cast<std::size_t>(r)]);
    for (int r = 0; r < kRanks; ++r) side(r).device().sync();
  }

 private:
  Cuda second_;
  std::array<Side<Cuda>, kRanks> sides_;
  std::array<ExchangeGroup, kRanks> groups_{};
};

Numbers sum_of(const Numbers& a, const Numbers& b) {
  Numbers sum = a;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

Status check_sum(Cuda& cuda, std::size_t count, std::size_t two_steps_from) {
  Ranks ranks(cuda, two_steps_from);
  const Numbers values[] = {draw(count, 51), draw(count, 52)};
  std::array<SumOverRanks, kRanks> ops;
  for (int r = 0; r < kRanks; ++r)
    ops[static_cast<std::size_t>(r)] = {ranks.group(r), ranks.side(r).put(values[r]),
                                        ranks.side(r).room<float>(count), count};
  ranks.exchange(ops);
  for (int r = 0; r < kRanks; ++r) {
    const Numbers got = ranks.side(r).get(ops[static_cast<std::size_t>(r)].out, count);
    if (Status s = compare(got, sum_of(values[0], values[1]), kExact); !s.ok()) return s;
  }
  return {};
}

Status check_sum_then_norm(Cpu& cpu, Cuda& cuda, int rows, std::size_t two_steps_from) {
  constexpr int kCols = 1024;
  const auto count = static_cast<std::size_t>(rows * kCols);
  const Numbers values[] = {draw(count, 53), draw(count, 54)}, weight = draw(kCols, 55);
  const auto norm = [&](auto& side, const Numbers& residual) {
    return AddRmsNorm{.out = side.rows(DType::bf16, rows, kCols),
                      .residual = side.floats(rows, kCols, residual),
                      .weight = side.floats(1, kCols, weight),
                      .rows = rows,
                      .cols = kCols};
  };
  Side<Cpu> here(cpu);
  const AddRmsNorm expected = norm(here, sum_of(values[0], values[1]));
  run(cpu, expected);
  const Numbers reference = here.numbers(DType::bf16, expected.out, rows, kCols);
  Ranks ranks(cuda, two_steps_from);
  std::array<SumThenNorm, kRanks> ops;
  for (int r = 0; r < kRanks; ++r) {
    const AddRmsNorm made = norm(ranks.side(r), values[r]);
    ops[static_cast<std::size_t>(r)] = {ranks.group(r), made.residual, made};
  }
  if (!is_supported(ops[0])) return {};  // such a GPU runs the two ops one after the other
  ranks.exchange(ops);
  for (int r = 0; r < kRanks; ++r) {
    const Numbers got =
        ranks.side(r).numbers(DType::bf16, ops[static_cast<std::size_t>(r)].norm.out, rows, kCols);
    if (Status s = compare(got, reference, rounded_between(DType::bf16)); !s.ok()) return s;
  }
  return {};
}

Status check_gather(Cuda& cuda) {
  constexpr int kRows = 3, kCols = 64;
  Ranks ranks(cuda);
  const Numbers values[] = {draw(kRows * kCols, 56), draw(kRows * kCols, 57)};
  std::array<GatherColumns, kRanks> ops;
  for (int r = 0; r < kRanks; ++r) {
    ops[static_cast<std::size_t>(r)] = {.group = ranks.group(r),
                                        .in = ranks.side(r).put(values[r]),
                                        .in_stride = kCols,
                                        .out = ranks.side(r).room<float>(kRows * kRanks * kCols),
                                        .out_stride = kRanks * kCols,
                                        .rows = kRows,
                                        .first = {0, kCols, 2 * kCols}};
  }
  ranks.exchange(ops);
  Numbers expected;
  for (int row = 0; row < kRows; ++row) {
    for (const Numbers& of : values)
      expected.insert(expected.end(), of.begin() + row * kCols, of.begin() + (row + 1) * kCols);
  }
  for (int r = 0; r < kRanks; ++r) {
    if (Status s = compare(ranks.side(r).get(ops[static_cast<std::size_t>(r)].out, expected.size()), expected,
                           kExact);
        !s.ok())
      return s;
  }
  return {};
}

}  // namespace

void add_exchange_checks(Checks& checks) {
  for (const std::size_t from : {kNeverInTwoSteps, std::size_t{0}}) {
    const std::string steps = from == 0 ? " in two steps" : "";
    for (const std::size_t count : {std::size_t{4096}, kMostInPackets + 1000}) {
      checks.push_back({"SumOverRanks",
                        "two ranks on one GPU, " + std::to_string(count) + " numbers" + steps,
                        {},
                        one_kernel,
                        [count, from](Cpu&, Cuda& cuda) { return check_sum(cuda, count, from); }});
    }
    for (const int rows : {4, 200}) {
      checks.push_back(
          {"SumThenNorm",
           "two ranks on one GPU, " + std::to_string(rows) + " rows of 1024" + steps,
           {},
           one_kernel,
           [rows, from](Cpu& cpu, Cuda& cuda) { return check_sum_then_norm(cpu, cuda, rows, from); }});
    }
  }
  checks.push_back({"GatherColumns", "two ranks on one GPU", {}, one_kernel, [](Cpu&, Cuda& cuda) {
                      return check_gather(cuda);
                    }});
}

}  // namespace troupe::kernels::check
