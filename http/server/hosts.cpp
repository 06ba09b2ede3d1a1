#include "http/server/hosts.h"

#include <algorithm>

#include "http/server/request_head.h"

namespace troupe::http {
namespace {

bool is_port(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// A name may end with the dot of the root.
std::string_view without_root(std::string_view name) {
  if (name.size() > 1 && name.back() == '.') name.remove_suffix(1);
  return name;
}

}  // namespace

std::string_view host_of(std::string_view authority) {
  const bool bracketed = authority.starts_with('[');
  const std::size_t end = bracketed ? authority.find(']') : authority.find(':');
  if (bracketed && end == authority.npos) return {};
  const std::string_view host = bracketed ? authority.substr(1, end - 1) : authority.substr(0, end);
  std::string_view rest =
      end == authority.npos ? std::string_view() : authority.substr(bracketed ? end + 1 : end);
  if (!rest.empty() && (rest.front() != ':' || !is_port(rest.substr(1)))) return {};
  return host;
}

std::string_view authority_of(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!same_word(target.substr(0, scheme.size()), scheme)) continue;
    return target.substr(scheme.size(), target.find_first_of("/?", scheme.size()) - scheme.size());
  }
  return {};
}

Hosts::Hosts(const std::vector<std::string>& own, const std::vector<std::string>& allowed)
    : listed_(!allowed.empty()) {
  names_.emplace_back("localhost");
  for (const std::string& name : own) add(name);
  for (const std::string& name : allowed) {
    all_ |= name == "*";
    add(name);
  }
}

void Hosts::add(std::string_view name) {
  const bool bracketed = name.size() > 2 && name.front() == '[' && name.back() == ']';
  if (const auto address = parse_address(bracketed ? name.substr(1, name.size() - 2) : name)) {
    addresses_.push_back(*address);
  } else if (!name.empty()) {
    names_.emplace_back(without_root(name));
  }
}

bool Hosts::serve(std::string_view authority, std::string_view address) const {
  if (all_) return true;
  const std::string_view host = host_of(authority);
  if (host.empty()) return false;
  if (const auto given = parse_address(host)) {
    return is_loopback(*given) || given == parse_address(address) ||
           std::find(addresses_.begin(), addresses_.end(), *given) != addresses_.end();
  }
  return std::any_of(names_.begin(), names_.end(),
                     [&](const std::string& name) { return same_word(name, without_root(host)); });
}

}  // namespace troupe::http
