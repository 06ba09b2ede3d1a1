#include "actors/supervisor/status_requests.h"

#include <sys/socket.h>

namespace troupe::supervisor {

namespace {

constexpr std::size_t kMaxClients = 32;

std::int64_t number_of(const nlohmann::json& object, const char* member) {
  if (!object.is_object()) return 0;
  const auto it = object.find(member);
  return it != object.end() && it->is_number_integer() ? it->get<std::int64_t>() : 0;
}

const nlohmann::json& member_of(const nlohmann::json& object, const char* member) {
  static const nlohmann::json none;
  if (!object.is_object()) return none;
  const auto it = object.find(member);
  return it != object.end() ? *it : none;
}

}  // namespace

void StatusRequests::ask(ipc::Fd client, const Control* engine, TimePoint now) {
  if (clients_.size() >= kMaxClients) return;  // closes the connection
  clients_.push_back(std::move(client));
  if (deadline_) return;
  deadline_ = now;
  if (engine != nullptr && engine->send({{"do", "status"}, {"id", ++question_}}).ok())
    deadline_ = now + patience_;
}

void StatusRequests::sample(const Control& engine, TimePoint now) {
  if (!deadline_ && engine.send({{"do", "status"}, {"id", ++question_}}).ok()) deadline_ = now + patience_;
}

bool StatusRequests::answered(const Packet& packet) {
  last_ = packet.message;
  return deadline_.has_value() && packet.number("id", -1) == question_;
}

void StatusRequests::fill(StatusPage& page) const {
  const nlohmann::json& tokens = member_of(last_, "tokens");
  page.tokens = {number_of(tokens, "prompt"), number_of(tokens, "generated")};
  const nlohmann::json& blocks = member_of(last_, "kv_blocks");
  page.kv_blocks = {number_of(blocks, "total"), number_of(blocks, "free"), number_of(blocks, "cached"),
                    number_of(blocks, "leased"), number_of(blocks, "moving")};
  const nlohmann::json& prefix = member_of(last_, "prefix_cache");
  page.prefix_cache = {number_of(prefix, "prompt_tokens"), number_of(prefix, "cached_tokens"),
                       number_of(prefix, "evicted_blocks")};
  const nlohmann::json& swap = member_of(last_, "swap_space");
  page.swap_space = {number_of(swap, "total"),          number_of(swap, "free"),
                     number_of(swap, "cached"),         number_of(swap, "moving"),
                     number_of(swap, "out_blocks"),     number_of(swap, "in_blocks"),
                     number_of(swap, "evicted_blocks"), number_of(swap, "failed_blocks"),
                     number_of(swap, "declined_blocks")};
  const nlohmann::json& media = member_of(last_, "media");
  for (const auto& [name, count] : kMediaTotals) page.media.*count = number_of(media, name);
  const nlohmann::json& queues = member_of(last_, "queues");
  if (!queues.is_array()) return;
  for (const nlohmann::json& queue : queues) {
    const nlohmann::json& name = member_of(queue, "name");
    if (!name.is_string()) continue;
    page.queues.push_back({name.get<std::string>(), number_of(queue, "depth"), number_of(queue, "capacity")});
  }
}

void StatusRequests::reply(const StatusPage& page) {
  const std::string text = to_json(page) + "\n";
  for (const ipc::Fd& client : clients_) {
    // A page is far smaller than a socket's buffer; a client whose buffer is full gets a part of it.
    [[maybe_unused]] const ssize_t n =
        send(client.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  clients_.clear();
  deadline_.reset();
}

}  // namespace troupe::supervisor
