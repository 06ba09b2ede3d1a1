#include "ipc/link.h"

#include <algorithm>

namespace troupe::ipc {

namespace {

// Longest single sleep of receive(), so that it beats while idle.
constexpr Duration kBeat = std::chrono::milliseconds(400);

}  // namespace

Result<LinkFds> create_link(const LinkSizes& sizes) {
  auto step = Segment::create(SegmentKind::step, sizes.step_down, sizes.step_up);
  if (!step) return step.status();
  auto cache = Segment::create(SegmentKind::cache, sizes.cache_down, sizes.cache_up);
  if (!cache) return cache.status();
  return LinkFds{std::move(*step), std::move(*cache)};
}

// ------------------------------------------------------------------------------------- LinkMonitor

Result<LinkMonitor> LinkMonitor::attach(int step_fd, int cache_fd) {
  auto step = Segment::attach(step_fd, SegmentKind::step);
  if (!step) return step.status();
  auto cache = Segment::attach(cache_fd, SegmentKind::cache);
  if (!cache) return cache.status();
  return LinkMonitor(std::move(*step), std::move(*cache));
}

void LinkMonitor::set_epoch(std::uint32_t epoch) {
  header().epoch.store(epoch, std::memory_order_release);
  for (Doorbell& bell : header().doorbells) bell.shout();
}

std::uint32_t LinkMonitor::reaped(Side side) {
  SideWords& words = header().sides[static_cast<int>(side)];
  words.heartbeat_ns.store(0, std::memory_order_relaxed);
  words.joined.store(0, std::memory_order_relaxed);
  // The two ends of a link may have supervisors of their own.
  const std::uint32_t next = header().epoch.fetch_add(1, std::memory_order_acq_rel) + 1;
  for (Doorbell& bell : header().doorbells) bell.shout();
  return next;
}

std::int64_t LinkMonitor::heartbeat_ns(Side side) const {
  return header().sides[static_cast<int>(side)].heartbeat_ns.load(std::memory_order_relaxed);
}

std::uint32_t LinkMonitor::joined(Side side) const {
  return header().sides[static_cast<int>(side)].joined.load(std::memory_order_relaxed);
}

const RingMemory& LinkMonitor::ring(Channel channel, Side reader) const {
  const Segment& segment = channel == Channel::step ? step_ : cache_;
  return reader == Side::lower ? segment.down() : segment.up();
}

std::vector<QueueDepth> LinkMonitor::depths() const {
  const auto one = [&](const char* name, Channel channel, Side reader) {
    const RingMemory& memory = ring(channel, reader);
    const RingDepth depth = ring_depth(memory);
    return QueueDepth{name, depth.records, depth.bytes, memory.capacity};
  };
  return {one("plan", Channel::step, Side::lower), one("result", Channel::step, Side::upper),
          one("cache_down", Channel::cache, Side::lower), one("cache_up", Channel::cache, Side::upper)};
}

// ----------------------------------------------------------------------------------------- LinkEnd

LinkEnd::LinkEnd(LinkMonitor link, Side side)
    : LinkMonitor(std::move(link)), side_(side), epoch_(LinkMonitor::epoch()) {
  for (const Channel channel : {Channel::step, Channel::cache}) {
    senders_[static_cast<int>(channel)] = RingProducer(ring(channel, other(side_)));
    receivers_[static_cast<int>(channel)] = RingConsumer(ring(channel, side_));
  }
  beat();
  header().doorbells[static_cast<int>(other(side_))].shout();
}

LinkEnd::LinkEnd(LinkEnd&& from) noexcept
    : LinkMonitor(static_cast<LinkMonitor&&>(from)),  // the base alone
      side_(from.side_),
      attached_(std::exchange(from.attached_, false)),
      beats_in_receive_(from.beats_in_receive_),
      spin_(from.spin_),
      held_(nullptr),
      epoch_(from.epoch_.load(std::memory_order_relaxed)),
      stale_(from.stale_.load(std::memory_order_relaxed)) {
  for (int i = 0; i < 2; ++i) {
    senders_[i] = from.senders_[i];
    receivers_[i] = from.receivers_[i];
  }
  if (from.held_ != nullptr) held_ = &receivers_[from.held_ - from.receivers_];
}

LinkEnd::~LinkEnd() {
  if (!attached_) return;
  SideWords& words = header().sides[static_cast<int>(side_)];
  words.heartbeat_ns.store(0, std::memory_order_relaxed);
}

bool LinkEnd::try_send(Channel channel, std::span<const std::byte> record, std::size_t leave) {
  if (!senders_[static_cast<int>(channel)].try_push(record, leave)) return false;
  header().doorbells[static_cast<int>(other(side_))].ring();
  return true;
}

std::size_t LinkEnd::max_record(Channel channel) const {
  return std::min(wire::kMaxRecordBytes, ring(channel, other(side_)).max_record());
}

void LinkEnd::beat_at(TimePoint now) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
  header().sides[static_cast<int>(side_)].heartbeat_ns.store(ns, std::memory_order_relaxed);
}

void LinkEnd::done() {
  if (held_ == nullptr) return;
  held_->pop();
  held_ = nullptr;
}

// Peeks at the oldest record of the current epoch and drops older ones. Does not release it.
LinkEnd::Look LinkEnd::look(Channel channel, Received& out) {
  RingConsumer& ring = receivers_[static_cast<int>(channel)];
  std::span<const std::byte> bytes;
  for (;;) {
    const RingConsumer::Peek peek = ring.peek(bytes);
    if (peek == RingConsumer::Peek::empty) return Look::nothing;
    out.channel = channel;
    if (peek == RingConsumer::Peek::corrupt || !wire::RecordView::open(bytes, out.view)) {
      ring.resync();
      out.kind = Received::Kind::corrupt;
      out.view = {};
      return Look::found;
    }
    // The peer may have seen the new epoch first and sent in it: report the change before that record.
    if (LinkMonitor::epoch() != epoch()) return Look::epoch_changed;
    if (out.view.header().epoch == epoch()) {
      out.kind = Received::Kind::record;
      return Look::found;
    }
    ring.pop();
    stale_.fetch_add(1, std::memory_order_relaxed);
  }
}

// Reads the step ring first, then returns a cache record if there is one: once a step record is visible, so
// is every cache record that was sent before it.
LinkEnd::Look LinkEnd::look_at_both(Received& out) {
  Received step, cache;
  const Look at_step = look(Channel::step, step);
  const Look at_cache = look(Channel::cache, cache);
  if (at_step == Look::epoch_changed || at_cache == Look::epoch_changed) return Look::epoch_changed;
  const bool step_is_corrupt = at_step == Look::found && step.kind == Received::Kind::corrupt;
  if (at_cache == Look::found && !step_is_corrupt) {
    out = cache;
    return Look::found;
  }
  if (at_step == Look::found) out = step;
  return at_step;
}

Received LinkEnd::receive(TimePoint deadline) {
  done();
  Received out;
  Doorbell& bell = header().doorbells[static_cast<int>(side_)];
  TimePoint now = Clock::now();  // reading the clock is a large part of a fast round trip: once per iteration
  for (;;) {
    if (beats_in_receive_) beat_at(now);
    Look found = Look::nothing;
    bool more = true;  // false at the deadline; true may mean stale records only
    while (more) {
      found = LinkMonitor::epoch() != epoch() ? Look::epoch_changed : look_at_both(out);
      if (found != Look::nothing || now >= deadline) break;
      more = bell.wait(std::min(deadline, now + kBeat), spin_, [&] {
        return receivers_[0].ready() || receivers_[1].ready() || LinkMonitor::epoch() != epoch();
      });
    }
    if (found == Look::epoch_changed) {
      epoch_.store(LinkMonitor::epoch(), std::memory_order_relaxed);
      out = {};
      out.kind = Received::Kind::epoch_changed;
      return out;
    }
    if (found == Look::found) {
      if (out.kind == Received::Kind::record) held_ = &receivers_[static_cast<int>(out.channel)];
      return out;
    }
    if (now >= deadline) return out;
    now = Clock::now();
  }
}

Result<UpperEnd> UpperEnd::attach(int step_fd, int cache_fd) {
  auto link = LinkMonitor::attach(step_fd, cache_fd);
  if (!link) return link.status();
  return UpperEnd(std::move(*link), Side::upper);
}

Result<LowerEnd> LowerEnd::attach(int step_fd, int cache_fd) {
  auto link = LinkMonitor::attach(step_fd, cache_fd);
  if (!link) return link.status();
  return LowerEnd(std::move(*link), Side::lower);
}

}  // namespace troupe::ipc
