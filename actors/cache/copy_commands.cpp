#include "actors/cache/copy_commands.h"

#include <algorithm>

namespace troupe {
namespace {

using wire::CacheOp;

/// Bounds on what the worker has not finished, so that its rings and queues never fill up: one answer makes
/// at most (kMostSaving + kMostFetching) / kBlocksOfACommand commands more.
constexpr std::size_t kMostCommands = 96;
constexpr std::size_t kMostSaving = 512;
constexpr std::size_t kMostFetching = 4096;

bool reads_pool(CacheOp op) { return op == CacheOp::copy_blocks || op == CacheOp::swap_out; }
bool writes_pool(CacheOp op) { return op != CacheOp::swap_out; }

}  // namespace

void CopyCommands::reset(std::uint32_t epoch) {
  epoch_ = epoch;
  last_id_ = 0;
  for (InFlight& command : in_flight_) command.id = 0;
  flying_ = 0;
  for (Copies& copies : copies_) copies.unfinished = 0;
  records_.clear();
}

bool CopyCommands::may_save() const {
  return of(CacheOp::swap_out).unfinished < kMostSaving && flying_ < kMostCommands;
}

bool CopyCommands::may_fetch(std::size_t others) const {
  const std::size_t unfinished = of(CacheOp::swap_in).unfinished + of(CacheOp::peer_in).unfinished;
  return unfinished + others < kMostFetching && flying_ < kMostCommands;
}

void CopyCommands::add(CacheOp op, wire::BlockCopy copy) {
  of(op).added.push_back(copy);
  ++of(op).unfinished;
}

void CopyCommands::add(const PeerBlock& from, BlockId to) {
  add(CacheOp::peer_in, {from.block, to});
  of(CacheOp::peer_in).sources.push_back(from);
}

void CopyCommands::write(BlockPool& pool) {
  records_.clear();
  for (const CacheOp op : {CacheOp::swap_out, CacheOp::copy_blocks, CacheOp::swap_in, CacheOp::peer_in})
    write_commands(op, pool);
}

/// As many commands as the copies of one kind need. Those of one command come from one life of one instance.
void CopyCommands::write_commands(CacheOp op, BlockPool& pool) {
  std::span<const wire::BlockCopy> copies = of(op).added;
  std::span<const PeerBlock> sources = of(op).sources;
  while (!copies.empty()) {
    const std::size_t most = op == CacheOp::copy_blocks ? copies.size() : kBlocksOfACommand;
    std::size_t count = std::min(copies.size(), most);
    if (!sources.empty()) {
      const auto other = std::find_if(sources.begin(), sources.end(), [&](const PeerBlock& source) {
        return source.peer != sources.front().peer || source.memory != sources.front().memory;
      });
      count = std::min(count, static_cast<std::size_t>(other - sources.begin()));
    }
    const std::span<const PeerBlock> from = sources.first(std::min(sources.size(), count));
    write_command(op, copies.first(count), from, pool);
    copies = copies.subspan(count);
    sources = sources.subspan(from.size());
  }
  of(op).added.clear();
  of(op).sources.clear();
}

void CopyCommands::write_command(CacheOp op, std::span<const wire::BlockCopy> copies,
                                 std::span<const PeerBlock> sources, BlockPool& pool) {
  const std::uint64_t id = ++last_id_;
  std::uint64_t after = 0;
  for (const wire::BlockCopy& copy : copies) {
    if (reads_pool(op)) after = std::max(after, pool.used_by(copy.from));
    if (writes_pool(op)) after = std::max(after, pool.used_by(copy.to));
  }
  for (const wire::BlockCopy& copy : copies) {
    // The source of several copies in one command is used once.
    if (reads_pool(op) && pool.used_by(copy.from) != id) pool.use(copy.from, id, false);
    if (writes_pool(op)) pool.use(copy.to, id, true);
  }
  if (writers_.size() == records_.size()) writers_.emplace_back();
  auto& writer = writers_[records_.size()];
  writer.begin(epoch_);
  const wire::Span<wire::BlockCopy> span = writer.array(copies);
  writer.record().id = id;
  writer.record().after = after;
  writer.record().op = op;
  if (!sources.empty()) {
    writer.record().peer = sources.front().peer;
    writer.record().memory = sources.front().memory;
  }
  writer.record().copies = span;
  records_.push_back(writer.finish());

  auto unused =
      std::find_if(in_flight_.begin(), in_flight_.end(), [](const InFlight& c) { return c.id == 0; });
  if (unused == in_flight_.end()) unused = in_flight_.insert(unused, InFlight{});
  unused->id = id;
  unused->op = op;
  unused->copies.assign(copies.begin(), copies.end());
  unused->sources.assign(sources.begin(), sources.end());
  ++flying_;
}

const CopyCommands::InFlight* CopyCommands::find(std::uint64_t id) const {
  if (id == 0) return nullptr;
  const auto found =
      std::find_if(in_flight_.begin(), in_flight_.end(), [id](const InFlight& c) { return c.id == id; });
  return found == in_flight_.end() ? nullptr : &*found;
}

void CopyCommands::end(const InFlight& command, bool failed, BlockPool& pool) {
  for (const wire::BlockCopy& copy : command.copies) {
    if (reads_pool(command.op)) pool.end_use(copy.from, command.id);
    if (writes_pool(command.op)) pool.end_use(copy.to, command.id, failed);
  }
  of(command.op).unfinished -= command.copies.size();
  in_flight_[static_cast<std::size_t>(&command - in_flight_.data())].id = 0;
  --flying_;
}

}  // namespace troupe
