#pragma once
// Messages of actors/messages.h as bytes, by the inspectors of actors/protocol.h. Both ends are processes of
// one build on one machine: numbers are stored as they are in memory, floats bit for bit, arrays of numbers
// and of structs that are nothing but numbers as one piece. What is read is checked against the bytes that
// are there: no count makes the reader allocate more than they could fill.
#include <array>
#include <caf/error.hpp>
#include <caf/meta/annotation.hpp>
#include <caf/meta/load_callback.hpp>
#include <caf/meta/save_callback.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/protocol.h"

namespace troupe {
namespace codec {

template <class T>
inline constexpr bool kNumber = std::is_arithmetic_v<T> || std::is_enum_v<T>;
/// True for elements whose arrays are stored as one piece, as they lie in memory: numbers, and structs of
/// numbers that have no padding and no bool.
template <class T>
inline constexpr bool kOnePiece = kNumber<T>;
template <>
inline constexpr bool kOnePiece<SequenceTokens> = true;
template <>
inline constexpr bool kOnePiece<PositionLogprobs> = true;
template <>
inline constexpr bool kOnePiece<wire::Logprob> = true;
static_assert(std::has_unique_object_representations_v<SequenceTokens>);
static_assert(sizeof(PositionLogprobs) == 20 && sizeof(wire::Logprob) == 8);
template <class T>
inline constexpr bool kAnnotation = std::is_base_of_v<caf::meta::annotation, T>;

/// An inspector that appends to a buffer.
class Writer {
 public:
  using result_type = caf::error;
  static constexpr bool reads_state = true, writes_state = false;

  explicit Writer(Bytes& out) : out_(out) {}

  template <class... Fields>
  caf::error operator()(Fields&&... fields) {
    (put(fields), ...);
    return caf::none;
  }

 private:
  template <class T>
  void put(T& x) {
    using Type = std::remove_cvref_t<T>;
    if constexpr (kAnnotation<Type>) {
      // Names of types are not stored, and nothing has to be done after a save.
    } else if constexpr (kNumber<Type>) {
      raw(&x, sizeof x);
    } else {
      put_object(const_cast<Type&>(x));  // an inspector takes what it reads by reference
    }
  }
  template <class T>
  void put_object(T& x) {
    (void)inspect(*this, x);
  }
  void put_object(std::string& x) {
    size(x.size());
    raw(x.data(), x.size());
  }
  template <class T>
  void put_object(std::vector<T>& x) {
    size(x.size());
    if constexpr (kOnePiece<T>) {
      raw(x.data(), x.size() * sizeof(T));
    } else {
      for (T& item : x) put(item);
    }
  }
  template <class T, std::size_t n>
  void put_object(std::array<T, n>& x) {
    for (T& item : x) put(item);
  }
  template <class A, class B>
  void put_object(std::pair<A, B>& x) {
    put(x.first);
    put(x.second);
  }
  void size(std::size_t count) {
    const auto stored = static_cast<std::uint32_t>(count);
    raw(&stored, sizeof stored);
  }
  void raw(const void* data, std::size_t bytes) {
    const auto* first = static_cast<const char*>(data);
    out_.insert(out_.end(), first, first + bytes);
  }

  Bytes& out_;
};

/// An inspector that takes from a buffer. After the first field that is not there it changes nothing more.
class Reader {
 public:
  using result_type = caf::error;
  static constexpr bool reads_state = false, writes_state = true;

  explicit Reader(std::span<const std::byte> in) : in_(in) {}

  template <class... Fields>
  caf::error operator()(Fields&&... fields) {
    (take(fields), ...);
    return caf::none;
  }

  /// Every byte was taken, and every field was there.
  bool complete() const { return good_ && in_.empty(); }

 private:
  template <class T>
  void take(T& x) {
    using Type = std::remove_cvref_t<T>;
    if constexpr (caf::meta::is_load_callback<Type>::value) {
      if (good_ && x.fun()) good_ = false;
    } else if constexpr (kAnnotation<Type>) {
      // Nothing is stored for it.
    } else if constexpr (std::is_same_v<Type, bool>) {
      std::uint8_t byte = 0;
      raw(&byte, sizeof byte);
      if (byte > 1) good_ = false;
      x = byte == 1;
    } else if constexpr (kNumber<Type>) {
      raw(&x, sizeof x);
    } else {
      if (good_) take_object(x);
    }
  }
  template <class T>
  void take_object(T& x) {
    (void)inspect(*this, x);
  }
  void take_object(std::string& x) {
    const std::size_t count = size(1);
    x.assign(reinterpret_cast<const char*>(in_.data()), count);
    in_ = in_.subspan(count);
  }
  template <class T>
  void take_object(std::vector<T>& x) {
    if constexpr (kOnePiece<T>) {
      x.resize(size(sizeof(T)));
      raw(x.data(), x.size() * sizeof(T));
    } else {
      const std::size_t count = size(1);  // an element takes a byte at least
      x.clear();
      for (std::size_t i = 0; i < count && good_; ++i) take(x.emplace_back());
    }
  }
  template <class T, std::size_t n>
  void take_object(std::array<T, n>& x) {
    for (T& item : x) take(item);
  }
  template <class A, class B>
  void take_object(std::pair<A, B>& x) {
    take(x.first);
    take(x.second);
  }
  /// A count of elements of at least so many bytes each; 0 when they are not there.
  std::size_t size(std::size_t bytes_each) {
    std::uint32_t count = 0;
    raw(&count, sizeof count);
    if (count > in_.size() / bytes_each) good_ = false;
    return good_ ? count : 0;
  }
  void raw(void* data, std::size_t bytes) {
    if (bytes > in_.size()) good_ = false;
    if (!good_ || bytes == 0) return;
    std::memcpy(data, in_.data(), bytes);
    in_ = in_.subspan(bytes);
  }

  std::span<const std::byte> in_;
  bool good_ = true;
};

}  // namespace codec

/// Appends a message's bytes.
template <class Message>
void encode(const Message& message, Bytes& out) {
  codec::Writer writer(out);
  if constexpr (codec::kNumber<Message>) {
    writer(message);
  } else {
    (void)inspect(writer, const_cast<Message&>(message));
  }
}

/// A message's bytes, in memory of this thread's own: valid until its next call for a message of that type.
template <class Message>
std::span<const std::byte> encoded_view(const Message& message) {
  thread_local Bytes bytes;
  bytes.clear();
  encode(message, bytes);
  return std::as_bytes(std::span(bytes));
}

/// False when the bytes are not those of one such message; `message` is then in some valid state.
template <class Message>
bool decode(std::span<const std::byte> bytes, Message& message) {
  codec::Reader reader(bytes);
  if constexpr (codec::kNumber<Message>) {
    reader(message);
  } else {
    (void)inspect(reader, message);
  }
  return reader.complete();
}

}  // namespace troupe
