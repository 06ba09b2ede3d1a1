#pragma once
// The first bytes of a memory file that processes share: a header whose `magic` says what it is and whose
// `version` is its writer's wire::kVersion.
#include <boost/interprocess/mapped_region.hpp>
#include <cstdint>
#include <new>
#include <string>
#include <utility>

#include "ipc/memory_file.h"
#include "ipc/wire.h"

namespace troupe::ipc {

/// A new memory file of so many bytes, zeros behind its header. `fill` sets the header's other members; the
/// magic comes last.
template <class Header, class Fill>
Result<Fd> make_file_with(const char* name, std::uint64_t bytes, std::uint64_t magic, Fill&& fill) {
  auto fd = make_memory_file(name, bytes);
  if (!fd) return fd.status();
  auto region = map_memory_file(fd->get(), bytes);
  if (!region) return region.status();
  auto* header = new ((*region)->get_address()) Header;
  header->version = wire::kVersion;
  fill(*header);
  header->magic = magic;
  return std::move(*fd);
}

/// not_ours() unless the file is of that kind and its writer has this wire version.
template <class Header>
Status check_header(const Header& header, std::uint64_t magic) {
  if (header.magic != magic) return not_ours("its first word is another");
  if (header.version == wire::kVersion) return {};
  return not_ours("it has wire version " + std::to_string(header.version) + ", not " +
                  std::to_string(wire::kVersion));
}

/// not_ours() unless it has the bytes that it was made for.
inline Status check_bytes(std::uint64_t made_for, std::uint64_t bytes) {
  if (made_for == bytes) return {};
  return not_ours("it is made for " + std::to_string(made_for) + " bytes and has " + std::to_string(bytes));
}

}  // namespace troupe::ipc
