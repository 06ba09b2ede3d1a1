#include "actors/media/media_files.h"

#include <array>
#include <span>
#include <utility>

#include "base/base64.h"
#include "ipc/memory_file.h"
#include "media/header/picture_header.h"

namespace troupe {

MeasuredFile measure_file(std::string_view base64, const PixelLimits& limits,
                          const media::PictureBounds& bounds, const HashKey& key) {
  MeasuredFile out;
  const auto bytes = decode_base64(base64);
  if (!bytes.ok()) {
    out.status = invalid("is " + bytes.status().message, {}, "invalid_image");
    return out;
  }
  const auto header = media::read_picture_header(
      {reinterpret_cast<const std::uint8_t*>(bytes->data()), bytes->size()}, bounds);
  if (!header.ok()) {
    out.status = header.status();
    return out;
  }
  const auto grid = media::grid_of(header->shown_width(), header->shown_height(), limits);
  if (!grid.ok()) {
    out.status = grid.status();
    return out;
  }
  auto file = ipc::make_constant_file("troupe-picture", *bytes);
  if (!file.ok()) {
    out.status = failure(Code::unavailable, "cannot be held: memory does not suffice; try again later");
    return out;
  }
  out.contents = siphash(key, std::as_bytes(std::span(*bytes)));
  out.bytes = bytes->size();
  out.grid = *grid;
  out.file = std::make_shared<const ipc::Fd>(*std::move(file));
  return out;
}

BlockHash contents_of(MediaKind kind, const PatchGrid& grid, std::span<const std::byte> patches,
                      const HashKey& key) {
  const BlockHash bytes = siphash(key, patches);
  const std::array<std::uint64_t, 6> all{static_cast<std::uint64_t>(kind),
                                         static_cast<std::uint64_t>(grid.frames),
                                         static_cast<std::uint64_t>(grid.rows),
                                         static_cast<std::uint64_t>(grid.columns),
                                         bytes.hi,
                                         bytes.lo};
  return siphash(key, std::as_bytes(std::span(all)));
}

}  // namespace troupe
