#include "actors/remote/kv_client.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "actors/remote/relay.h"
#include "model/swap/checksum.h"

namespace troupe::remote {
namespace {

constexpr Duration kKvRetry = std::chrono::milliseconds(300);
/// Of a want that does not come, so that beats go out in time.
constexpr Duration kLongestWantWait = std::chrono::milliseconds(100);

}  // namespace

void KvClient::run(const std::stop_token& stop) {
  std::string told;
  while (!stop.stop_requested()) {
    const std::string why = visit(stop);
    fetches_.set_connected(false);
    if (stop.stop_requested()) return;
    if (!why.empty() && (why != told || blocks_ > 0)) {
      setup_.log.warning("kv_connection_ended",
                         {kv("address", config::to_string(setup_.engine)), kv("rank", setup_.rank),
                          kv("blocks", blocks_.load()), kv("why", why)});
    }
    told = why;
    for (const TimePoint until = Clock::now() + kKvRetry; Clock::now() < until && !stop.stop_requested();)
      std::this_thread::sleep_for(kStopLook / 4);
  }
}

/// Returns why it is over; "" when no worker of this side has come yet.
std::string KvClient::visit(const std::stop_token& stop) {
  block_bytes_ = fetches_.block_bytes();
  blocks_ = number_ = 0;
  pending_.clear();
  if (block_bytes_ == 0) return "";
  const TimePoint deadline = Clock::now() + kGreetingPatience;
  auto stream = Stream::connect(setup_.engine, setup_.tls, deadline, stop);
  if (!stream.ok()) return stream.status().message;
  RelayGreeting own = setup_.own;
  own.kv = KvPart{setup_.rank, setup_.ranks, block_bytes_};
  FrameReader reader;
  const auto answer = greet(**stream, reader, own, deadline, stop);
  if (!answer.ok() && answer.status().code == Code::forbidden) setup_.refused(answer.status().message);
  if (!answer.ok()) return answer.status().message;
  setup_.log.info("kv_connected", {kv("address", config::to_string(setup_.engine)), kv("rank", setup_.rank)});
  fetches_.set_connected(true);
  std::stop_source over;
  const std::stop_callback end(stop, [&over] { over.request_stop(); });
  std::string first;  // the reason that counts
  const auto end_with = [&](const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (first.empty()) first = why;
    over.request_stop();
  };
  std::thread receiving([&] {
    ::pthread_setname_np(::pthread_self(), "relay_kv_read");
    end_with(receive(**stream, over.get_token()));
  });
  end_with(send(**stream, over.get_token()));
  (*stream)->close();
  receiving.join();
  return first;
}

void KvClient::put_wants(std::span<std::uint64_t> seen, bool wait, std::vector<std::byte>& out) {
  // The first is waited for; those behind it go along.
  for (TimePoint until = wait ? Clock::now() + kLongestWantWait : TimePoint{};; until = TimePoint{}) {
    const auto want = fetches_.next_want(seen, until);
    if (!want) return;
    put_want(*want, out);
  }
}

void KvClient::put_want(const ipc::BlockFetches::Want& want, std::vector<std::byte>& out) {
  ipc::BlockName name;
  // The life first: a table that is cleared loses it first.
  if (setup_.names->memory() != want.memory || !setup_.names->read(want.block, name))
    return fetches_.answer(want, false);
  put({0, want.memory, name.hash, want.block}, {0, want}, out);
}

void KvClient::put(KvWant asked, Pending pending, std::vector<std::byte>& out) {
  asked.number = pending.number = ++number_;
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back(std::move(pending));
  }
  const auto bytes = std::as_bytes(std::span(&asked, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

std::string KvClient::send(Stream& stream, const std::stop_token& over) {
  std::array<std::uint64_t, ipc::BlockFetches::kMostSlots> seen{};
  std::vector<std::byte> out;
  for (TimePoint next_beat{}; !over.stop_requested();) {
    out.clear();
    if (Clock::now() >= next_beat) {
      next_beat = Clock::now() + kBeatPeriod;
      put({}, {}, out);
    }
    put_wants(seen, out.empty(), out);
    if (fetches_.block_bytes() != block_bytes_) return "was left, as a worker has come with other blocks";
    if (auto why = write_all(stream, out, over); !why.empty()) return why;
  }
  return "was left";
}

std::string KvClient::receive(Stream& stream, const std::stop_token& over) {
  for (;;) {
    KvAnswerHead head;
    if (auto why = read_all(stream, std::as_writable_bytes(std::span(&head, 1)), over); !why.empty())
      return why;
    Pending pending;
    {
      const std::lock_guard lock(mutex_);
      if (!pending_.empty()) {
        pending = pending_.front();
        pending_.pop_front();
      }
    }
    if (auto why = take(stream, head, pending, over); !why.empty()) return why;
  }
}

/// "", or why nothing more can be read.
std::string KvClient::take(Stream& stream, const KvAnswerHead& head, const Pending& pending,
                           const std::stop_token& over) {
  const KvAnswer expected = pending.want ? KvAnswer::block : KvAnswer::beat;
  const bool gone = pending.want && head.kind == KvAnswer::gone;
  if (pending.number == 0 || head.number != pending.number || (head.kind != expected && !gone))
    return "has sent what is no answer to a want";
  if (!pending.want || gone) {
    if (head.bytes != 0) return "has sent what is no answer to a want";
    if (pending.want) fetches_.answer(*pending.want, false);
    return "";
  }
  const std::span<std::byte> room = fetches_.room(pending.want->slot, block_bytes_);
  if (head.bytes != block_bytes_ || room.empty()) {
    return "has sent a KV block of " + std::to_string(head.bytes) + " bytes, not of " +
           std::to_string(block_bytes_);
  }
  if (auto why = read_all(stream, room, over); !why.empty()) return why;
  if (model::checksum(room) != head.checksum) return "has sent a KV block whose checksum is another";
  ++blocks_;
  fetches_.answer(*pending.want, true);
  return "";
}

}  // namespace troupe::remote
