// JPEG by libjpeg-turbo with its default settings, which are Pillow's: the integer DCT, and smooth upsampling
// of colours.
#include <csetjmp>
#include <cstddef>
#include <cstdio>
// jpeglib.h needs <cstdio> before it.
#include <jerror.h>
#include <jpeglib.h>

#include <new>

#include "media/decode/decode.h"

namespace troupe::media {
namespace {

/// A progressive file may have as many scans as its author likes, and each is a pass over all coefficients.
constexpr int kMaxScans = 200;

/// Warnings behind which all pixels may still be right. At any other one data were missing or made up.
bool is_harmless(int message) {
  return message == JWRN_EXTRANEOUS_DATA || message == JWRN_ADOBE_XFORM || message == JWRN_JFIF_MAJOR ||
         message == JWRN_TOO_MUCH_DATA || message == JWRN_BOGUS_ICC;
}

struct Errors {
  jpeg_error_mgr base{};  // first: libjpeg knows its address alone
  std::jmp_buf jump{};
  char text[JMSG_LENGTH_MAX] = "";
};

Errors& errors_of(j_common_ptr info) { return *reinterpret_cast<Errors*>(info->err); }

[[noreturn]] void fail(j_common_ptr info) {
  Errors& errors = errors_of(info);
  errors.base.format_message(info, errors.text);
  std::longjmp(errors.jump, 1);
}

void note_message(j_common_ptr info, int level) {
  if (level < 0 && !is_harmless(info->err->msg_code)) fail(info);
}

void print_nothing(j_common_ptr) {}

void note_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMaxScans) return;
  info->err->msg_code = JERR_BAD_PROGRESSION;
  fail(info);
}

/// libjpeg leaves a function that failed by longjmp, so none of those that call it has a local variable with
/// a destructor.
class JpegReader {
 public:
  explicit JpegReader(Bytes file) : file_(file) {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = fail;
    errors_.base.emit_message = note_message;
    errors_.base.output_message = print_nothing;
    progress_.progress_monitor = note_progress;
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
  ~JpegReader() { jpeg_destroy_decompress(&info_); }

  bool read_header() {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, file_.data(), file_.size());
    jpeg_read_header(&info_, TRUE);
    info_.out_color_space = info_.num_components == 4 ? JCS_CMYK : JCS_EXT_RGBX;
    return true;
  }

  /// Behind read_header().
  bool read_pixels(Picture& out) {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_start_decompress(&info_);
    while (info_.output_scanline < info_.output_height) {
      JSAMPROW row = out.row(static_cast<int>(info_.output_scanline));
      jpeg_read_scanlines(&info_, &row, 1);
    }
    jpeg_finish_decompress(&info_);
    return true;
  }

  bool out_of_memory() const { return errors_.base.msg_code == JERR_OUT_OF_MEMORY; }
  bool is_cmyk() const { return info_.out_color_space == JCS_CMYK; }
  int width() const { return static_cast<int>(info_.image_width); }
  int height() const { return static_cast<int>(info_.image_height); }
  const char* why() const { return errors_.text; }

 private:
  Bytes file_;
  Errors errors_;
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct info_{};
};

/// From cyan, magenta, yellow, black, stored inverted as in all such files since Adobe's, without a colour
/// profile: Pillow's formula and rounding.
void from_cmyk(Picture& picture) {
  std::uint8_t* end = picture.row(0) + picture.bytes();
  for (std::uint8_t* pixel = picture.row(0); pixel != end; pixel += kPixelBytes) {
    const unsigned white = pixel[3];
    for (int i = 0; i < 3; ++i) {
      const unsigned product = (255u - pixel[i]) * white + 128;
      pixel[i] = static_cast<std::uint8_t>(white - (((product >> 8) + product) >> 8));
    }
  }
}

}  // namespace

Result<Picture> decode_jpeg(Bytes file, const PictureHeader& header) {
  JpegReader reader(file);
  if (!reader.read_header()) return damaged_picture(header.kind, reader.why());
  if (reader.width() != header.width || reader.height() != header.height)
    return damaged_picture(header.kind, "it states two sizes");
  Picture out(header.width, header.height);
  if (!reader.read_pixels(out)) {
    if (reader.out_of_memory()) throw std::bad_alloc();
    return damaged_picture(header.kind, reader.why());
  }
  if (reader.is_cmyk()) from_cmyk(out);
  return out;
}

}  // namespace troupe::media
