// What is known of a picture before it is decoded, and what is refused there.
#include "media/header/picture_header.h"

#include <gtest/gtest.h>

#include <map>

#include "media/decode/decode.h"
#include "media/header/orientation.h"
#include "media/support/samples.h"

namespace troupe::media {
namespace {

using testing::Buffer;
using testing::sample;

Buffer bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

template <std::size_t Size>
Buffer literal(const char (&text)[Size]) {
  return bytes_of(std::string_view(text, Size - 1));
}

Status refusal_of(const Buffer& file, const PictureBounds& bounds = {}) {
  return read_picture_header(file, bounds).status();
}

/// A PNG file's signature and IHDR.
Buffer png_of(std::uint32_t width, std::uint32_t height) {
  Buffer out = literal("\x89PNG\r\n\x1a\n\0\0\0\x0DIHDR");
  for (const std::uint32_t side : {width, height})
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<std::uint8_t>(side >> shift));
  for (const int byte : {8, 2, 0, 0, 0, 1, 2, 3, 4}) out.push_back(static_cast<std::uint8_t>(byte));
  return out;
}

TEST(PictureHeader, IsReadOfEverySample) {
  const auto expected = testing::sample_json("expected.json", "pictures");
  for (const auto& [name, value] : expected.items()) {
    const auto header = read_picture_header(sample(name));
    ASSERT_TRUE(header.ok()) << name << header.status().message;
    EXPECT_EQ(header->shown_width(), value["size"][0].get<int>()) << name;
    EXPECT_EQ(header->shown_height(), value["size"][1].get<int>()) << name;
    const std::map<std::string, PictureKind> kinds{{"jpg", PictureKind::jpeg},
                                                   {"png", PictureKind::png},
                                                   {"webp", PictureKind::webp},
                                                   {"gif", PictureKind::gif}};
    EXPECT_EQ(header->kind, kinds.at(name.substr(name.find('.') + 1))) << name;
  }
  for (int orientation = 1; orientation <= 8; ++orientation)
    EXPECT_EQ(read_picture_header(sample("jpeg_exif_" + std::to_string(orientation) + ".jpg"))->orientation,
              orientation);
  EXPECT_EQ(read_picture_header(sample("png_exif_behind.png"))->orientation, 6);
  EXPECT_EQ(read_picture_header(sample("webp_exif_8.webp"))->orientation, 8);
}

TEST(PictureHeader, EveryCutOfEverySampleIsSurvived) {
  const auto expected = testing::sample_json("expected.json", "pictures");
  for (const auto& [name, value] : expected.items()) {
    const Buffer file = sample(name);
    for (std::size_t size = 0; size < std::min<std::size_t>(file.size(), 700); ++size) {
      // Of exact size, so that a sanitizer sees a read behind the end.
      const Buffer cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      const auto header = read_picture_header(cut);
      if (!header.ok()) {
        EXPECT_EQ(header.status().code, Code::invalid_argument) << name << " " << size;
        EXPECT_EQ(header.status().reason, "invalid_image") << name << " " << size;
      }
    }
  }
}

TEST(PictureHeader, OtherFormatsAreRefusedByTheirNames) {
  const std::pair<Buffer, const char*> others[] = {
      {literal("\0\0\0\x1C"
               "ftypavif"),
       "an AVIF picture"},
      {literal("\0\0\0\x18"
               "ftypheic"),
       "a HEIF picture"},
      {literal("\0\0\0\x18"
               "ftypmif1"),
       "a HEIF picture"},
      {literal("\0\0\0\x18"
               "ftypisom"),
       "an MP4 video"},
      {literal("II*\0\x08\0\0\0"), "a TIFF picture"},
      {literal("MM\0*\0\0\0\x08"), "a TIFF picture"},
      {literal("\xFF\x0A\x10"), "a JPEG XL picture"},
      {literal("\0\0\0\x0CJXL \r\n\x87\n"), "a JPEG XL picture"},
      {literal("\0\0\0\x0CjP  \r\n\x87\n"), "a JPEG 2000 picture"},
      {literal("BM\x36\x10"), "a BMP picture"},
      {literal("\0\0\1\0\1\0"), "an ICO picture"},
      {literal("%PDF-1.7"), "a PDF document"},
      {literal("\x1A\x45\xDF\xA3\x01"), "a Matroska or WebM video"},
      {literal("RIFF\1\2\3\4AVI LIST"), "an AVI video"},
      {literal("<?xml version=\"1.0\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\"/>"), "an SVG drawing"},
      {literal("  <svg width=\"30000\"/>"), "an SVG drawing"},
  };
  for (const auto& [file, name] : others) {
    const Status status = refusal_of(file);
    EXPECT_EQ(status.message, std::string("is ") + name + "; JPEG, PNG, WebP and GIF are read");
    EXPECT_EQ(status.reason, "unsupported_image");
    EXPECT_EQ(status.code, Code::invalid_argument);
  }
}

TEST(PictureHeader, WhatIsNoPictureIsSaidToBeNone) {
  EXPECT_EQ(refusal_of({}).message, "is empty: 0 bytes are no picture");
  for (const char* text :
       {"x", "hello world", "<html><body>404</body></html>", "GIF", "\x89PNG", "RIFF\1\2\3\4WAVEfmt "}) {
    const Status status = refusal_of(bytes_of(text));
    EXPECT_EQ(status.message,
              "is no picture: its first bytes are those of no known format; JPEG, PNG, WebP and GIF are read")
        << text;
    EXPECT_EQ(status.reason, "invalid_image");
  }
}

TEST(PictureHeader, SizesOverALimitAreRefusedUndecoded) {
  const Status bomb = refusal_of(png_of(30'000, 30'000));
  EXPECT_EQ(bomb.reason, "image_too_large");
  EXPECT_EQ(bomb.message, "is 30000 x 30000 = 900000000 pixels; a picture may have 33177600");
  EXPECT_TRUE(read_picture_header(png_of(7680, 4320)).ok());
  EXPECT_EQ(refusal_of(png_of(7681, 4320)).reason, "image_too_large");
  EXPECT_EQ(refusal_of(png_of(0xFFFFFFFF, 0xFFFFFFFF)).message,
            "is 4294967295 x 4294967295 = 18446744065119617025 pixels; a picture may have 33177600");
  EXPECT_TRUE(read_picture_header(png_of(65'535, 1)).ok());
  EXPECT_EQ(refusal_of(png_of(1, 65'536)).message, "is 1 x 65536 pixels; a side may have 65535");
  EXPECT_EQ(refusal_of(png_of(0, 5)).message,
            "is a PNG picture of 0 x 5 pixels; each side must have 1 or more");
  const Status bytes = refusal_of(sample("png_rgb.png"), {.bytes = 1000});
  EXPECT_EQ(bytes.reason, "image_too_large");
  EXPECT_EQ(bytes.message, "has 3261 bytes; a picture may have 1000");
}

TEST(PictureHeader, DamagedAndCutHeadersAreNamed) {
  EXPECT_EQ(refusal_of(literal("\x89PNG\r\n\x1a\n\0\0\0\x0DIHDR")).message,
            "is a PNG picture whose header is cut");
  EXPECT_EQ(refusal_of(literal("GIF89a\1\0")).message, "is a GIF picture whose header is cut");
  EXPECT_EQ(refusal_of(literal("GIF89a\1\0\1\0\0\0\0;")).message, "is a GIF picture without a frame");
  EXPECT_EQ(refusal_of(literal("\xFF\xD8\xFF\xE0\0\x10JFIF")).message,
            "is a JPEG picture whose header is cut");
  EXPECT_EQ(refusal_of(literal("\xFF\xD8\xFF\xD9")).message, "is a JPEG picture without pixels");
  EXPECT_EQ(refusal_of(literal("\xFF\xD8\xFF\xC0\0\x01")).message, "is a JPEG picture with a damaged header");
  EXPECT_EQ(refusal_of(literal("RIFF\1\2\3\4WEBPVP8 ")).message, "is a WebP picture whose header is cut");
  EXPECT_EQ(refusal_of(literal("RIFF\1\2\3\4WEBPVP8L\1\2\3\4\0\0\0\0\0")).message,
            "is a WebP picture with a damaged header");
}

TEST(PictureHeader, VariantsOfJpegThatAreNotDecodedAreNamed) {
  const auto frame = [](int marker, int bits, int height, int components) {
    return Buffer{0xFF,
                  0xD8,
                  0xFF,
                  static_cast<std::uint8_t>(marker),
                  0,
                  8,
                  static_cast<std::uint8_t>(bits),
                  0,
                  static_cast<std::uint8_t>(height),
                  0,
                  8,
                  static_cast<std::uint8_t>(components),
                  0xFF,
                  0xDA};
  };
  EXPECT_TRUE(read_picture_header(frame(0xC0, 8, 8, 3)).ok());
  EXPECT_EQ(refusal_of(frame(0xC9, 8, 8, 3)).message,
            "is a JPEG picture with arithmetic coding; baseline and progressive ones are read");
  EXPECT_EQ(refusal_of(frame(0xC3, 8, 8, 3)).message,
            "is a JPEG picture with lossless coding; baseline and progressive ones are read");
  EXPECT_EQ(refusal_of(frame(0xC1, 12, 8, 3)).message, "is a JPEG picture of 12 bits a sample; 8 are read");
  EXPECT_EQ(refusal_of(frame(0xC0, 8, 8, 2)).message,
            "is a JPEG picture with 2 components; 1, 3 and 4 are read");
  EXPECT_EQ(refusal_of(frame(0xC0, 8, 0, 3)).message,
            "is a JPEG picture that states its height behind its pixels; it must stand in the header");
}

TEST(Orientation, IsReadInBothOrdersAndTypes) {
  EXPECT_EQ(exif_orientation(literal("II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0")), 6);
  EXPECT_EQ(exif_orientation(literal("Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\5\0\0")), 5);
  EXPECT_EQ(exif_orientation(literal("MM\0*\0\0\0\x08\0\1\1\x12\0\4\0\0\0\1\0\0\0\7")), 7);
}

TEST(Orientation, DamagedMetadataTurnNothing) {
  EXPECT_EQ(exif_orientation({}), std::nullopt);
  EXPECT_EQ(exif_orientation(literal("II*\0\xFF\xFF\xFF\xFF")), std::nullopt);
  EXPECT_EQ(exif_orientation(literal("II*\0\x08\0\0\0\xFF\xFF")), std::nullopt);
  EXPECT_EQ(exif_orientation(literal("II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\x09\0\0\0")), 1);
  EXPECT_EQ(exif_orientation(literal("II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\0\0\0\0")), 1);
  EXPECT_EQ(exif_orientation(literal("II*\0\x08\0\0\0\1\0\x12\1\2\0\1\0\0\0\6\0\0\0")), std::nullopt);
}

TEST(Orientation, OfXmpCountsWhereExifNamesNone) {
  EXPECT_EQ(xmp_orientation(bytes_of("<rdf:Description tiff:Orientation=\"8\"/>")), 8);
  EXPECT_EQ(xmp_orientation(bytes_of("<tiff:Orientation>3</tiff:Orientation>")), 3);
  EXPECT_EQ(xmp_orientation(bytes_of("tiff:Orientation")), std::nullopt);
  EXPECT_EQ(xmp_orientation(bytes_of("tiff:Orientation=\"9\"")), std::nullopt);
  EXPECT_EQ((OrientationFinder{std::nullopt, 8}).orientation(), 8);
  EXPECT_EQ((OrientationFinder{1, 8}).orientation(), 1);
  EXPECT_EQ(OrientationFinder().orientation(), 1);
}

// libjpeg makes up what is missing, with a warning; here it is an error.
TEST(Decode, DamagedDataAreAnError) {
  for (const char* name :
       {"jpeg_420.jpg", "jpeg_420_progressive.jpg", "jpeg_restart.jpg", "png_rgb.png", "gif_plain.gif"}) {
    Buffer file = sample(name);
    for (std::size_t i = file.size() / 2; i < file.size() / 2 + 20; ++i) file[i] = 0xFF;
    const auto header = read_picture_header(file);
    ASSERT_TRUE(header.ok()) << name;
    const Status status = decode(file, *header).status();
    EXPECT_EQ(status.reason, "invalid_image") << name;
    EXPECT_NE(status.message.find(" picture that cannot be decoded: "), std::string::npos) << status.message;
  }
}

// A scan too many, as in files that keep a decoder busy with thousands of them.
TEST(Decode, ScansThatAddNothingAreAnError) {
  Buffer file = sample("jpeg_420_progressive.jpg");
  const Buffer start{0xFF, 0xDA};
  const auto last = std::find_end(file.begin(), file.end(), start.begin(), start.end());
  const Buffer scan(last, file.end() - 2);
  for (int i = 0; i < 300; ++i) file.insert(file.end() - 2, scan.begin(), scan.end());
  const auto header = read_picture_header(file);
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(decode(file, *header).status().reason, "invalid_image");
}

// A decoder that finds another size than the header was bounded by does not write a pixel.
TEST(Decode, ASizeThatIsNotTheHeadersIsAnError) {
  for (const char* name :
       {"jpeg_420.jpg", "png_rgb.png", "gif_plain.gif", "webp_lossy.webp", "webp_lossless.webp"}) {
    const Buffer file = sample(name);
    auto header = read_picture_header(file);
    ASSERT_TRUE(header.ok());
    header->width -= 1;
    EXPECT_EQ(decode(file, *header).status().reason, "invalid_image") << name;
  }
}

}  // namespace
}  // namespace troupe::media
