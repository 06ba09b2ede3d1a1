// PNG by libpng. Colours are taken as they are: gamma and profiles are not applied. Of 16 bits the upper 8
// count.
#include <png.h>

#include <csetjmp>
#include <cstring>
#include <vector>

#include "media/decode/composite.h"
#include "media/decode/decode.h"

namespace troupe::media {
namespace {

/// What is left of the file, and where a function of libpng that fails goes on.
struct Source {
  Bytes rest;
  std::jmp_buf jump{};
  char text[128] = "memory does not suffice";
};

[[noreturn]] void fail(png_structp png, png_const_charp text) {
  auto& source = *static_cast<Source*>(png_get_error_ptr(png));
  std::strncpy(source.text, text, sizeof source.text - 1);
  std::longjmp(source.jump, 1);
}

void ignore(png_structp, png_const_charp) {}

void read(png_structp png, png_bytep to, std::size_t size) {
  auto& source = *static_cast<Source*>(png_get_io_ptr(png));
  if (size > source.rest.size()) png_error(png, "the file is cut");
  std::memcpy(to, source.rest.data(), size);
  source.rest = source.rest.subspan(size);
}

/// As with libjpeg: no function that calls libpng has a local variable with a destructor.
class PngReader {
 public:
  explicit PngReader(Bytes file) : source_{file} {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source_, fail, ignore);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }

  bool read_header() {
    if (info_ == nullptr) return false;
    if (setjmp(source_.jump) != 0) return false;
    png_set_read_fn(png_, &source_, read);
    // Pictures need neither texts nor profiles, which may be compressed bombs.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_user_limits(png_, 0x7FFFFFFF, 0x7FFFFFFF);  // the header's size has been bounded
    png_read_info(png_, info_);
    png_set_expand(png_);  // palettes, fewer than 8 bits, and tRNS as opacity
    png_set_strip_16(png_);
    png_set_gray_to_rgb(png_);
    has_opacity_ = (png_get_color_type(png_, info_) & PNG_COLOR_MASK_ALPHA) != 0 ||
                   png_get_valid(png_, info_, PNG_INFO_tRNS) != 0;
    if (!has_opacity_) png_set_filler(png_, 0xFF, PNG_FILLER_AFTER);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  /// Behind read_header(). `rows` has the address of each row.
  bool read_pixels(png_bytepp rows) {
    if (setjmp(source_.jump) != 0) return false;
    png_read_image(png_, rows);
    png_read_end(png_, nullptr);
    return true;
  }

  bool has_opacity() const { return has_opacity_; }
  int width() const { return static_cast<int>(png_get_image_width(png_, info_)); }
  int height() const { return static_cast<int>(png_get_image_height(png_, info_)); }
  std::size_t row_bytes() const { return png_get_rowbytes(png_, info_); }
  const char* why() const { return source_.text; }

 private:
  Source source_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  bool has_opacity_ = false;
};

}  // namespace

Result<Picture> decode_png(Bytes file, const PictureHeader& header) {
  PngReader reader(file);
  if (!reader.read_header()) return damaged_picture(header.kind, reader.why());
  Picture out(header.width, header.height);
  if (reader.width() != header.width || reader.height() != header.height ||
      reader.row_bytes() != out.row_bytes())
    return damaged_picture(header.kind, "it states two sizes");
  std::vector<png_bytep> rows;
  for (int y = 0; y < out.height(); ++y) rows.push_back(out.row(y));
  if (!reader.read_pixels(rows.data())) return damaged_picture(header.kind, reader.why());
  if (reader.has_opacity()) lay_on_white(out);
  return out;
}

}  // namespace troupe::media
