#include "model/cuda/peer_exchange.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace troupe::model {

/// What a rank tells the others.
struct PeerExchange::Message {
  PeerAddress inbox, shared;
  bool known = false;  ///< two_steps_from
  std::size_t two_steps_from = 0;
};

PeerExchange::PeerExchange(Cuda& device, const Shard& shard, bool shares_gpu)
    : device_(device),
      shard_(shard),
      inbox_(device, kernels::exchange_inbox_bytes(shard.ranks)),
      table_(device, sizeof(kernels::ExchangeTable)),
      stop_(sizeof(std::uint32_t)),
      known_(shares_gpu || shard.ranks <= 2),
      two_steps_from_(kernels::expected_two_steps_from(shard.ranks)),
      others_(static_cast<std::size_t>(shard.ranks)),
      others_shared_(static_cast<std::size_t>(shard.ranks)) {
  TROUPE_CHECK(shard.ranks <= kernels::kMostPeers);
  if (!known_) meter_.emplace(device);
}

kernels::ExchangeGroup PeerExchange::group() const {
  return {.table = reinterpret_cast<kernels::ExchangeTable*>(table_.data()),
          .stop = reinterpret_cast<const std::uint32_t*>(stop_.data()),
          .rank = shard_.rank,
          .ranks = shard_.ranks,
          .two_steps_from = two_steps_from_};
}

void PeerExchange::tell(std::byte* to) const {
  const Message message{inbox_.address(), shared_.address(), known_, two_steps_from_};
  std::memcpy(to, &message, sizeof message);
}

Status PeerExchange::reach(PeerMemory& memory, const PeerAddress& address, int rank) {
  if (memory.address() == address) return {};
  memory = PeerMemory();  // the one before has died
  Result<PeerMemory> opened = PeerMemory::open(device_, address);
  if (!opened) {
    return failure(opened.status().code, "rank " + std::to_string(rank) + ": " + opened.status().message);
  }
  memory = std::move(*opened);
  return {};
}

Status PeerExchange::connect(const std::function<const std::byte*(int)>& message_of) {
  kernels::ExchangeTable table{};
  table.number = kernels::kFirstExchange;
  table.live = 1;
  for (int rank = 0; rank < shard_.ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    Message message;
    std::memcpy(&message, message_of(rank), sizeof message);
    if (message.known && !known_) learn(message.two_steps_from);
    if (rank == shard_.rank) {
      table.inboxes[at] = inbox_.data();
      continue;
    }
    if (Status s = reach(others_[at], message.inbox, rank); !s.ok()) return s;
    if (shared_.bytes() > 0) {
      if (Status s = reach(others_shared_[at], message.shared, rank); !s.ok()) return s;
    }
    table.inboxes[at] = others_[at].data();
  }
  stop_word().store(0, std::memory_order_release);
  device_.zero(inbox_.data(), inbox_.bytes());
  device_.upload(table_.data(), &table, sizeof table);
  device_.sync();
  return {};
}

void PeerExchange::measure() {
  measuring_ = true;
  meter_->begin(group());
}

void PeerExchange::learn(std::size_t two_steps_from) {
  two_steps_from_ = two_steps_from;
  known_ = true;
  measuring_ = false;
}

void PeerExchange::disconnect() {
  if (!std::exchange(measuring_, false)) return;
  leave();
  device_.sync();  // before the next epoch begins, which takes `stop` back
}

void PeerExchange::skip_to(std::uint32_t number) {
  device_.upload(table_.data() + offsetof(kernels::ExchangeTable, number), &number, sizeof number);
  device_.sync();
}

void PeerExchange::all_reduce(float* in, float* out, std::size_t count) {
  kernels::run(device_, kernels::SumOverRanks{.group = group(), .in = in, .out = out, .count = count});
}

bool PeerExchange::all_reduce(float* in, const kernels::AddRmsNorm& norm) {
  const kernels::SumThenNorm both{.group = group(), .in = in, .norm = norm};
  if (!kernels::is_supported(both)) {
    all_reduce(in, norm.residual, kernels::numbers_in(norm));
    return false;
  }
  kernels::run(device_, both);
  return true;
}

void PeerExchange::all_gather(const float* in, std::size_t in_stride, float* out, std::size_t out_stride,
                              int rows, std::span<const int> first) {
  kernels::GatherColumns op{
      .group = group(), .in = in, .in_stride = in_stride, .out = out, .out_stride = out_stride, .rows = rows};
  TROUPE_CHECK(first.size() == static_cast<std::size_t>(shard_.ranks) + 1);
  std::copy(first.begin(), first.end(), op.first);
  kernels::run(device_, op);
}

}  // namespace troupe::model
