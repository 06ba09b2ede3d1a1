#include "ipc/memory_file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace troupe::ipc {
namespace {

std::string text_of(const ConstantBytes& mapped) {
  return {reinterpret_cast<const char*>(mapped.bytes.data()), mapped.bytes.size()};
}

TEST(ConstantFile, IsMappedAsItWasMade) {
  const std::string contents = std::string("a\0b", 3) + std::string(100'000, 'x') + "end";
  auto file = make_constant_file("troupe-test", contents);
  ASSERT_TRUE(file.ok()) << file.status().message;
  auto first = map_constant_file(file->get());
  auto second = map_constant_file(file->get());
  ASSERT_TRUE(first.ok()) << first.status().message;
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(text_of(*first), contents);
  file->reset();
  first->owner.reset();
  EXPECT_EQ(text_of(*second), contents) << "the descriptor is not needed, nor another mapping";
}

TEST(ConstantFile, CannotBeChanged) {
  const auto file = make_constant_file("troupe-test", "contents");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(pwrite(file->get(), "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(file->get(), 1), -1);
  EXPECT_EQ(ftruncate(file->get(), 100), -1);
  EXPECT_EQ(mmap(nullptr, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0), MAP_FAILED);
}

TEST(ConstantFile, AFileThatCouldChangeIsNotMapped) {
  const Fd unsealed(memfd_create("troupe-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(write(unsealed.get(), "x", 1), 1);
  EXPECT_EQ(map_constant_file(unsealed.get()).status().code, Code::invalid_argument);
  const auto writable = make_memory_file("troupe-test", 4096);  // its size is sealed alone
  ASSERT_TRUE(writable.ok());
  EXPECT_EQ(map_constant_file(writable->get()).status().code, Code::invalid_argument);
  EXPECT_FALSE(map_constant_file(-1).ok());
}

TEST(ConstantFile, AnEmptyOneIsRefused) {
  const auto file = make_constant_file("troupe-test", "");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(map_constant_file(file->get()).status().code, Code::invalid_argument);
}

}  // namespace
}  // namespace troupe::ipc
