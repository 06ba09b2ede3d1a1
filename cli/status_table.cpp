#include "cli/status_table.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/command_line.h"
#include "cli/text_table.h"

namespace troupe::cli {
namespace {

using JsonValue = nlohmann::json;

const JsonValue& member(const JsonValue& object, const char* name) {
  static const JsonValue nothing;
  if (!object.is_object()) return nothing;
  const auto found = object.find(name);
  return found == object.end() ? nothing : *found;
}

std::string shown(const JsonValue& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return printable(value.get_ref<const std::string&>());
  if (value.is_array()) {
    std::string out;
    for (const JsonValue& item : value) out += (out.empty() ? "" : ",") + shown(item);
    return out.empty() ? "-" : out;
  }
  return value.dump();
}

/// "3d 4h", "2h 5m", "7m 12s", "9s".
std::string duration(const JsonValue& seconds) {
  if (!seconds.is_number()) return "-";
  const auto total = static_cast<std::int64_t>(std::clamp(seconds.get<double>(), 0.0, 1e12));
  const auto pair = [](std::int64_t a, char unit, std::int64_t b, char small) {
    return std::to_string(a) + unit + ' ' + std::to_string(b) + small;
  };
  if (total >= 86400) return pair(total / 86400, 'd', total % 86400 / 3600, 'h');
  if (total >= 3600) return pair(total / 3600, 'h', total % 3600 / 60, 'm');
  if (total >= 60) return pair(total / 60, 'm', total % 60, 's');
  return std::to_string(total) + "s";
}

/// Bytes as "12.3", in millions.
std::string megabytes(const JsonValue& bytes) {
  if (!bytes.is_number()) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", std::clamp(bytes.get<double>(), 0.0, 1e18) * 1e-6);
  return text;
}

/// The engine's own queues hold requests or sequences, rings hold bytes.
std::string unit_of(const std::string& queue) {
  if (queue == "open_requests") return "requests";
  return queue.starts_with("running") || queue.starts_with("waiting") ? "sequences" : "bytes";
}

}  // namespace

Result<std::string> status_table(std::string_view json) {
  const JsonValue status = JsonValue::parse(json, nullptr, false);
  if (!status.is_object()) return failure(Code::internal, "the server's status is not a JSON object");
  const JsonValue& ports = member(status, "ports");
  const JsonValue& blocks = member(status, "kv_blocks");
  std::string out = "model   " + shown(member(status, "model")) + "\nstate   " +
                    shown(member(status, "state")) + "\nports   http " + shown(member(ports, "http")) +
                    " · metrics " + shown(member(ports, "metrics")) + " · engine worker queue " +
                    shown(member(ports, "engine_worker_queue")) + " · cache queue " +
                    shown(member(ports, "cache_queue")) + "\nlogs    " +
                    shown(member(member(status, "logs"), "dir")) + "\nkv      ";
  for (const char* part : {"total", "free", "cached", "leased", "moving"}) {
    out +=
        shown(member(blocks, part)) + " " + part + (std::string_view(part) == "moving" ? " blocks\n" : " · ");
  }
  for (const JsonValue& peer : member(status, "peers")) {
    const bool prefill = member(peer, "role") == "prefill";
    const JsonValue &address = member(peer, "address"), &pid = member(peer, "pid");
    const std::string place = address.is_string() ? shown(address) : "";
    out += "peer    " + shown(member(peer, "role")) + (place.empty() ? " instance" : " at " + place) +
           (prefill ? " at queue port " + shown(member(peer, "port")) : "") + " · " +
           shown(member(peer, "state")) + (pid.is_number() && pid != 0 ? " · pid " + shown(pid) : "") +
           (member(peer, "why") != "" ? " · " + shown(member(peer, "why")) : "") + "\n";
  }
  const JsonValue& tokens = member(status, "tokens");
  out += "tokens  " + shown(member(tokens, "prompt_per_s")) + " prompt tokens/s · " +
         shown(member(tokens, "generated_per_s")) + " output tokens/s · since the engine's start " +
         shown(member(tokens, "prompt")) + " prompt · " + shown(member(tokens, "generated")) + " output\n";
  const JsonValue& prefix = member(status, "prefix_cache");
  out += "prefix  " + shown(member(prefix, "cached_tokens")) + " of " +
         shown(member(prefix, "prompt_tokens")) + " prompt tokens found in the cache · " +
         shown(member(prefix, "evicted_blocks")) + " blocks evicted\n";
  const JsonValue& swap = member(status, "swap_space");
  if (const JsonValue& total = member(swap, "total"); total.is_number() && total != 0) {
    out += "swap    " + shown(total) + " total · " + shown(member(swap, "free")) + " free · " +
           shown(member(swap, "cached")) + " cached · " + shown(member(swap, "moving")) +
           " moving blocks · " + shown(member(swap, "out_blocks")) + " copied out · " +
           shown(member(swap, "in_blocks")) + " copied back · " + shown(member(swap, "failed_blocks")) +
           " failed\n";
  }
  const JsonValue& media = member(status, "media");
  if (const JsonValue& limit = member(media, "file_limit"); limit.is_number() && limit != 0) {
    out += "media   " + megabytes(member(media, "file_bytes")) + " of " + megabytes(limit) + " MB files · " +
           megabytes(member(media, "patch_bytes")) + " of " + megabytes(member(media, "patch_limit")) +
           " MB patches · cache " + shown(member(media, "cached_entries")) + " items, " +
           megabytes(member(media, "cached_bytes")) + " of " + megabytes(member(media, "cached_limit")) +
           " MB, " + shown(member(media, "hits")) + " hits, " + shown(member(media, "misses")) +
           " misses · " + shown(member(media, "decodes_running")) + " decoding · " +
           shown(member(media, "decodes_waiting")) + " waiting · " +
           shown(member(media, "requests_waiting")) + " requests waiting for memory · " +
           shown(member(media, "refused")) + " refused\n";
  }
  std::vector<TableRow> rows = {{"process", "pid", "up", "restarts", "state"}};
  for (const JsonValue& process : member(status, "processes")) {
    rows.push_back({shown(member(process, "name")), shown(member(process, "pid")),
                    duration(member(process, "uptime_s")), shown(member(process, "restarts")),
                    shown(member(process, "state"))});
  }
  out += "\n" + table(rows);
  for (const JsonValue& process : member(status, "processes")) {
    const JsonValue& why = member(process, "last_end");
    if (why.is_string() && !why.get_ref<const std::string&>().empty())
      out += "  last restart: " + shown(why) + "\n";
  }
  rows = {{"queue", "depth", "capacity", "unit"}};
  for (const JsonValue& queue : member(status, "queues")) {
    const std::string name = shown(member(queue, "name"));
    rows.push_back({name, shown(member(queue, "depth")), shown(member(queue, "capacity")), unit_of(name)});
  }
  return out + "\n" + table(rows);
}

}  // namespace troupe::cli
