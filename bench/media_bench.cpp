// How long one core takes from a file to patches. The files are written here, so that their size is known: a
// picture of soft shapes with some noise, about as many bytes a pixel as a photograph.
//
//   media_bench [--json] [--video FILE]
#include <cstddef>
#include <cstdio>
// jpeglib.h needs <cstdio> before it.
#include <jpeglib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include "bench/cpu_clock.h"
#include "bench/report.h"
#include "media/decode/decode.h"
#include "media/pixel_grid.h"
#include "media/prepare.h"
#include "media/resize/patches.h"
#include "media/video/decode_video.h"
#include "media/video/stamp.h"

namespace {

using namespace troupe;

/// Three bytes a pixel.
std::vector<std::uint8_t> shapes(int width, int height) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  std::uint32_t state = 1;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      state = state * 1664525 + 1013904223;
      const double base =
          110 + 60 * std::sin(x * 0.013) + 50 * std::cos(y * 0.021) + (x / 97 + y / 61) % 2 * 20;
      for (int i = 0; i < 3; ++i)
        out[(static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(x)) *
                3 +
            static_cast<std::size_t>(i)] =
            static_cast<std::uint8_t>(
                std::clamp(base + 9 * i + static_cast<double>(state >> 24) * 0.09, 0.0, 255.0));
    }
  }
  return out;
}

/// Colours are halved in both directions (4:2:0), as cameras write them.
std::vector<std::uint8_t> jpeg(int width, int height, bool progressive) {
  std::vector<std::uint8_t> pixels = shapes(width, height);
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 85, TRUE);
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < height; ++y) {
    JSAMPROW row = pixels.data() + static_cast<std::size_t>(y) * static_cast<std::size_t>(width) * 3;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::vector<std::uint8_t> out(memory, memory + size);
  std::free(memory);
  return out;
}

/// The best of several runs, in milliseconds of this thread's processor time.
template <class Work>
double best_ms(Work&& work) {
  double best = 1e9;
  for (int i = 0; i < 15; ++i) {
    const double start = bench::cpu_us();
    work();
    best = std::min(best, (bench::cpu_us() - start) / 1e3);
  }
  return best;
}

void measure(bench::Report& report, const char* name, int width, int height, bool progressive, double must) {
  const auto file = jpeg(width, height, progressive);
  const auto header = media::read_picture_header(file);
  const auto grid = media::grid_of(width, height, {});
  if (!header.ok() || !grid.ok()) std::abort();
  std::vector<std::uint8_t> patches(media::patches_bytes(*grid));
  const std::string prefix = std::string("media.") + name;
  const double whole = best_ms([&] {
    if (!media::prepare_picture(file, {}, {}, patches).ok()) std::abort();
  });
  const double decoding = best_ms([&] {
    if (!media::decode(file, *header).ok()) std::abort();
  });
  auto picture = media::decode(file, *header);
  const double resizing = best_ms([&] { media::resize_to_patches(*picture, *grid, patches); });
  const double header_only = best_ms([&] {
    if (!media::read_picture_header(file).ok()) std::abort();
  });
  // Pixels read and patches written once: what resizing moves at the least.
  const double bytes = static_cast<double>(picture->bytes() + patches.size());
  report.row({prefix + ".file", static_cast<double>(file.size()) / 1e6, "MB"});
  report.row({prefix + ".header", header_only * 1e3, "us", 0, 0, bench::Better::lower});
  report.row({prefix + ".decode", decoding, "ms", 0, 0, bench::Better::lower});
  report.row({prefix + ".decode_rate", static_cast<double>(picture->bytes()) / decoding / 1e6, "GB/s"});
  report.row({prefix + ".resize", resizing, "ms", 0, 0, bench::Better::lower});
  report.row({prefix + ".resize_rate", bytes / resizing / 1e6, "GB/s"});
  report.row({prefix + ".whole", whole, "ms", 0, must, bench::Better::lower});
}

/// A video of the caller's, whose time is bounded for 60 s of 720p in H.264.
void measure_video(bench::Report& report, const char* path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<std::uint8_t> file(std::istreambuf_iterator<char>(in), {});
  auto stamp = media::Stamp::open(media::kStampFont);
  if (!media::open_video_libraries().ok() || !stamp.ok()) std::abort();
  const double start = bench::cpu_us();
  const auto facts = media::probe_video(file, {});
  if (!facts.ok()) std::abort();
  const double probed = bench::cpu_us();
  const auto frames = media::sampled_frames(*facts, {});
  const auto grid = media::video_grid(*facts, frames->size(), kVideoPixels);
  std::vector<std::uint8_t> patches(media::patches_bytes(*grid));
  const double began = bench::cpu_us();
  if (!media::prepare_video(file, {}, kVideoPixels, {}, *stamp, patches).ok()) std::abort();
  report.row({"media.video.file", static_cast<double>(file.size()) / 1e6, "MB"});
  report.row({"media.video.length", facts->seconds(), "s"});
  report.row({"media.video.frames", static_cast<double>(frames->size()), "frames"});
  report.row({"media.video.probe", (probed - start) / 1e6, "s", 0, 0, bench::Better::lower});
  report.row({"media.video.whole", (bench::cpu_us() - began) / 1e6, "s", 0, 8, bench::Better::lower});
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv);
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) != "--video") continue;
    measure_video(report, argv[i + 1]);
    return report.all_met() ? 0 : 1;
  }
  measure(report, "1080p", 1920, 1080, false, 25);
  measure(report, "1080p_progressive", 1920, 1080, true, 0);
  measure(report, "12mp", 4000, 3000, false, 0);
  return report.all_met() ? 0 : 1;
}
