#include "actors/supervisor/peer_facts.h"

#include <algorithm>
#include <cctype>
#include <span>

#include "config/fields.h"
#include "ipc/wire.h"

namespace troupe::supervisor {

namespace {

constexpr const char* kBuild = "build";
constexpr const char* kWire = "version of the wire format";
constexpr const char* kMessages = "version of the link's messages";
constexpr const char* kModel = "model";
constexpr const char* kDraftLayer = "draft layer";

// Flags that decide what is in a KV block. How many ranks hold a block is told with their memories.
constexpr const char* kFlags[] = {"device",        "model-config-name", "load-choices",
                                  "dtype",         "quantization",      "quantization-group",
                                  "lm-head-dtype", "kv-cache-dtype",    "block-size"};

// In the order in which they are compared.
constexpr const char* kFirst[] = {kBuild, kWire, kMessages, kModel};

constexpr std::size_t kLongestShown = 200;

std::string draft_layer(const config::SpeculationOptions& speculation) {
  if (speculation.method != config::DraftMethod::mtp) return "none";
  std::string text = speculation.draft_model.empty() ? "the model's own" : speculation.draft_model;
  if (!speculation.quantization.empty()) text += ", " + speculation.quantization;
  return text;
}

/// The other side's text comes from another process: it is cut, and without control characters.
std::string shown(const PeerFacts& facts, const std::string& name) {
  const auto it = facts.find(name);
  if (it == facts.end()) return "unknown";
  std::string text = it->second.empty() ? "unset" : it->second;
  if (text.size() > kLongestShown) text = text.substr(0, kLongestShown) + "…";
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
  return text;
}

bool are_same(const PeerFacts& a, const PeerFacts& b, const std::string& name) {
  const auto left = a.find(name), right = b.find(name);
  return left != a.end() && right != b.end() && left->second == right->second;
}

/// Adds what these flags are.
void add_flags(PeerFacts& facts, const config::Options& options, std::span<const char* const> flags) {
  config::Options copy = options;
  const std::vector<config::Field> fields = config::fields(copy);
  for (const char* flag : flags) {
    const auto it = std::find_if(fields.begin(), fields.end(),
                                 [flag](const config::Field& field) { return field.name == flag; });
    facts[std::string("--") + flag] = it == fields.end() ? std::string() : config::show_value(*it);
  }
}

}  // namespace

PeerFacts facts_of(const config::Options& options) {
  PeerFacts facts{{kBuild, TROUPE_VERSION},
                  {kWire, std::to_string(wire::kVersion)},
                  {kMessages, std::to_string(wire::kMessagesVersion)},
                  {kModel, options.model.directory},
                  {kDraftLayer, draft_layer(options.speculation)}};
  add_flags(facts, options, kFlags);
  // Random weights come from it.
  constexpr const char* kSeed[] = {"seed"};
  if (options.model.load_choices == config::LoadChoice::dummy) add_flags(facts, options, kSeed);
  return facts;
}

PeerFacts facts_across_machines(const config::Options& options) {
  PeerFacts facts = facts_of(options);
  facts.erase(kModel);
  return facts;
}

std::string difference(const PeerSide& a, const PeerSide& b) {
  std::vector<std::string> names(std::begin(kFirst), std::end(kFirst));
  for (const PeerSide* side : {&a, &b}) {
    for (const auto& [name, value] : side->facts) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  for (const std::string& name : names) {
    if (!a.facts.contains(name) && !b.facts.contains(name)) continue;
    if (are_same(a.facts, b.facts, name)) continue;
    return name.substr(0, kLongestShown) + " differs: " + a.name + " has " + shown(a.facts, name) + ", " +
           b.name + " " + shown(b.facts, name);
  }
  return "";
}

}  // namespace troupe::supervisor
