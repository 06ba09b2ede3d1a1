#pragma once
// What every device offers. Everything above kernels/ is written against this concept. An op is an args
// struct and one overload of kernels::run per device, so a missing op is a link error.
#include <concepts>
#include <cstddef>
#include <string>

namespace troupe {

/// alloc() returns zeroed memory, aligned for every op, or null when there is not enough; free() accepts
/// null. upload, download and ops run in the order of the calls; sync() waits for all of them. A device is
/// used by one thread at a time.
template <class D>
concept Device = requires(D d, void* p, const void* q, std::size_t n) {
  { D::name } -> std::convertible_to<const char*>;
  { D::available() } -> std::same_as<bool>;
  { d.alloc(n) } -> std::same_as<void*>;
  { d.describe() } -> std::convertible_to<std::string>;
  d.free(p);
  d.upload(p, q, n);
  d.download(p, q, n);
  d.sync();
};

class Cpu;
class Cuda;

}  // namespace troupe
