# The libraries by themselves: cmake --install build/release --component zht --prefix PREFIX. Then find_package(zht) gives
# zht::zht (C++) and zht::c, and pkg-config knows zht++ and zht. One shared library each, all of ours inside: whoever uses
# them needs no other package (but OpenSSL's library at run time). The `zht` program comes along, for it is what starts the local node.
add_library(zht_cpp SHARED types.cc client.cc procedure.cc node.cc client/network_client.cc
  ../novoht/base/result.cc ../novoht/base/bytes.cc ../novoht/base/random.cc)
target_link_libraries(zht_cpp PRIVATE zht_server zht_client Threads::Threads)
target_include_directories(zht_cpp PRIVATE ${PROJECT_SOURCE_DIR} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
target_compile_features(zht_cpp INTERFACE cxx_std_20)
target_sources(zht_cpp PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES
  types.h client.h coroutine.h asio.h node.h procedure.h
  ../novoht/base/result.h ../novoht/base/check.h ../novoht/base/bytes.h ../novoht/base/clock.h ../novoht/base/random.h)
target_link_options(zht_cpp PRIVATE LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cpp.map)
set_target_properties(zht_cpp PROPERTIES OUTPUT_NAME zht++ EXPORT_NAME zht VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cpp.map)
set_target_properties(zht_c PROPERTIES EXPORT_NAME c)

include(GNUInstallDirs)
install(TARGETS zht_cpp zht_c EXPORT zhtTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT zht NAMELINK_COMPONENT zht
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT zht)
install(PROGRAMS $<TARGET_FILE:zht_program> DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT zht)
install(EXPORT zhtTargets NAMESPACE zht:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zht COMPONENT zht)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/zhtConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/zhtConfig.cmake "include(\${CMAKE_CURRENT_LIST_DIR}/zhtTargets.cmake)\n")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/zhtConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/zhtConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zht COMPONENT zht)
foreach(name zht zht++)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc
    "prefix=\${pcfiledir}/../..\nlibdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}\nincludedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}\n\n"
    "Name: ${name}\nDescription: client of the zero-hop key-value store, and its node as a library\n"
    "Version: ${PROJECT_VERSION}\nLibs: -L\${libdir} -l${name}\nCflags: -I\${includedir}\n")
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig COMPONENT zht)
endforeach()
