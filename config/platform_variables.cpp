#include "config/platform_variables.h"

#include <algorithm>
#include <string_view>

namespace troupe::config {
namespace {

constexpr std::string_view kHost = "_SERVICE_HOST", kServicePort = "_SERVICE_PORT", kPort = "_PORT";
constexpr std::string_view kProtocols[] = {"TCP", "UDP", "SCTP"};

bool is_address(std::string_view value) {
  return value.starts_with("tcp://") || value.starts_with("udp://") || value.starts_with("sctp://");
}

/// "8180_TCP", "8180_TCP_ADDR": what stands behind NAME_PORT_.
bool names_a_port(std::string_view rest) {
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0 || digits == rest.size() || rest[digits] != '_') return false;
  rest.remove_prefix(digits + 1);
  return std::ranges::any_of(kProtocols, [&](std::string_view protocol) {
    if (!rest.starts_with(protocol)) return false;
    const std::string_view end = rest.substr(protocol.size());
    return end.empty() || end == "_ADDR" || end == "_PORT" || end == "_PROTO";
  });
}

/// The services' names as variables begin with them: TROUPE, TROUPE_METRICS.
std::set<std::string> services_in(const Environment& environment) {
  std::set<std::string> services;
  for (const auto& [name, value] : environment) {
    if (name.ends_with(kPort) && is_address(value))
      services.insert(name.substr(0, name.size() - kPort.size()));
    if (!name.ends_with(kHost)) continue;
    const std::string service = name.substr(0, name.size() - kHost.size());
    if (environment.contains(service + std::string(kServicePort))) services.insert(service);
  }
  return services;
}

/// True for a variable of the service whose variables begin with `service`.
bool is_of(std::string_view service, std::string_view name, std::string_view value) {
  if (!name.starts_with(service)) return false;
  const std::string_view rest = name.substr(service.size());
  if (rest == kHost || rest == kServicePort) return true;
  if (rest == kPort) return is_address(value);
  if (rest.starts_with("_SERVICE_PORT_")) return true;
  return rest.starts_with("_PORT_") && names_a_port(rest.substr(kPort.size() + 1));
}

}  // namespace

std::set<std::string> platform_variables(const Environment& environment) {
  std::set<std::string> names;
  for (const std::string& service : services_in(environment)) {
    for (const auto& [name, value] : environment) {
      if (is_of(service, name, value)) names.insert(name);
    }
  }
  return names;
}

std::string platform_note(const Environment& environment, const std::vector<Field>& fields, bool all) {
  std::string read, others;
  for (const std::string& name : platform_variables(environment)) {
    const bool is_read = std::ranges::any_of(fields, [&](const Field& field) {
      return !field.hidden && (name == field.env || name == variable_name(field));
    });
    std::string& list = is_read ? read : others;
    if (is_read || (all && (name.starts_with("TROUPE_") || name.starts_with("FD_")))) {
      list += (list.empty() ? "" : ", ") + name;
    }
  }
  const std::string names = read + (read.empty() || others.empty() ? "" : ", ") + others;
  return names.empty() ? names : "ignored, since the platform sets them for a service of that name: " + names;
}

}  // namespace troupe::config
