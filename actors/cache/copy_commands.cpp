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
  return of(CacheOp::swap_in).unfinished + others < kMostFetching && flying_ < kMostCommands;
}

void CopyCommands::add(CacheOp op, wire::BlockCopy copy) {
  of(op).added.push_back(copy);
  ++of(op).unfinished;
}

void CopyCommands::write(BlockPool& pool) {
  records_.clear();
  for (const CacheOp op : {CacheOp::swap_out, CacheOp::copy_blocks, CacheOp::swap_in})
    write_commands(op, pool);
}

/// As many commands as the copies of one kind need.
void CopyCommands::write_commands(CacheOp op, BlockPool& pool) {
  std::span<const wire::BlockCopy> copies = of(op).added;
  while (!copies.empty()) {
    const std::size_t most = op == CacheOp::copy_blocks ? copies.size() : kBlocksOfACommand;
    const auto part = copies.first(std::min(copies.size(), most));
    copies = copies.subspan(part.size());
    write_command(op, part, pool);
  }
  of(op).added.clear();
}

void CopyCommands::write_command(CacheOp op, std::span<const wire::BlockCopy> copies, BlockPool& pool) {
  const std::uint64_t id = ++last_id_;
  std::uint64_t after = 0;
  for (const wire::BlockCopy& copy : copies) {
    if (op != CacheOp::swap_in) after = std::max(after, pool.used_by(copy.from));
    if (op != CacheOp::swap_out) after = std::max(after, pool.used_by(copy.to));
  }
  for (const wire::BlockCopy& copy : copies) {
    // The source of several copies in one command is used once.
    if (op != CacheOp::swap_in && pool.used_by(copy.from) != id) pool.use(copy.from, id, false);
    if (op != CacheOp::swap_out) pool.use(copy.to, id, true);
  }
  if (writers_.size() == records_.size()) writers_.emplace_back();
  auto& writer = writers_[records_.size()];
  writer.begin(epoch_);
  const wire::Span<wire::BlockCopy> span = writer.array(copies);
  writer.record().id = id;
  writer.record().after = after;
  writer.record().op = op;
  writer.record().copies = span;
  records_.push_back(writer.finish());

  auto unused =
      std::find_if(in_flight_.begin(), in_flight_.end(), [](const InFlight& c) { return c.id == 0; });
  if (unused == in_flight_.end()) unused = in_flight_.insert(unused, InFlight{});
  unused->id = id;
  unused->op = op;
  unused->copies.assign(copies.begin(), copies.end());
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
    if (command.op != CacheOp::swap_in) pool.end_use(copy.from, command.id);
    if (command.op != CacheOp::swap_out) pool.end_use(copy.to, command.id, failed);
  }
  of(command.op).unfinished -= command.copies.size();
  in_flight_[static_cast<std::size_t>(&command - in_flight_.data())].id = 0;
  --flying_;
}

}  // namespace troupe
