# SPDX-License-Identifier: Apache-2.0
# Gives the target moesaic::archive. Distributions build libarchive with formats that this project does not read, and the
# shared library brings libxml2, ICU, nettle and more along. Their static library gives the few functions that are used:
# the linker drops the others and with them what only they need. Where that cannot be linked, it is the shared library.
find_package(LibArchive REQUIRED)
find_library(LIBARCHIVE_STATIC libarchive.a)
find_library(LZMA_LIBRARY NAMES lzma liblzma.so.5)
find_library(BZIP2_LIBRARY NAMES bz2 libbz2.so.1.0)
mark_as_advanced(LIBARCHIVE_STATIC LZMA_LIBRARY BZIP2_LIBRARY)

add_library(moesaic::archive INTERFACE IMPORTED GLOBAL)
target_include_directories(moesaic::archive INTERFACE ${LibArchive_INCLUDE_DIRS})
set(moesaic_archive_parts ${LIBARCHIVE_STATIC} ${LZMA_LIBRARY} ${BZIP2_LIBRARY} ZLIB::ZLIB)
set(moesaic_archive_flags -Wl,--gc-sections -Wl,--exclude-libs,libarchive.a)

include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_INCLUDES ${LibArchive_INCLUDE_DIRS})
set(CMAKE_REQUIRED_LIBRARIES ${moesaic_archive_parts})
set(CMAKE_REQUIRED_LINK_OPTIONS ${moesaic_archive_flags})
if(LIBARCHIVE_STATIC AND LZMA_LIBRARY AND BZIP2_LIBRARY)
  check_cxx_source_compiles("
    #include <archive.h>
    int main() {
      archive* const in = archive_read_new();
      archive_read_support_filter_gzip(in);
      archive_read_support_filter_bzip2(in);
      archive_read_support_filter_xz(in);
      archive_read_support_format_tar(in);
      archive* const out = archive_write_new();
      archive_write_set_format_pax_restricted(out);
      return archive_read_open_filename(in, nullptr, 1) + archive_write_open_fd(out, 1);
    }" MOESAIC_LIBARCHIVE_STATIC)
endif()
unset(CMAKE_REQUIRED_INCLUDES)
unset(CMAKE_REQUIRED_LIBRARIES)
unset(CMAKE_REQUIRED_LINK_OPTIONS)
if(MOESAIC_LIBARCHIVE_STATIC)
  target_link_libraries(moesaic::archive INTERFACE ${moesaic_archive_parts})
  target_link_options(moesaic::archive INTERFACE ${moesaic_archive_flags})
else()
  target_link_libraries(moesaic::archive INTERFACE LibArchive::LibArchive)
endif()
