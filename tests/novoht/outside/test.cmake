# Installs the library into an empty folder and uses it from there, by find_package and by pkg-config.
#   cmake -DBUILD=... -DSOURCE=... -DCOMPILER=... -P test.cmake
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}\n${status}: ${out}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

execute_process(COMMAND mktemp -d OUTPUT_VARIABLE work OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
file(READ ${SOURCE}/novoht/README.md readme)
string(REGEX MATCH "```cpp\n([^`]*)```" found "${readme}")
file(WRITE ${work}/example.h "${CMAKE_MATCH_1}")
run(${CMAKE_COMMAND} --install ${BUILD} --component novoht --prefix ${work}/prefix)

run(${CMAKE_COMMAND} -S ${SOURCE}/tests/novoht/outside -B ${work}/build -DCMAKE_PREFIX_PATH=${work}/prefix -DEXAMPLE=${work}
    -G Ninja -DCMAKE_CXX_COMPILER=${COMPILER})  # make need not be there
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/outside ${work}/store)
if(NOT output STREQUAL "v version 1\n")
  message(FATAL_ERROR "the example printed: ${output}")
endif()

set(ENV{PKG_CONFIG_PATH} ${work}/prefix/share/pkgconfig)
execute_process(COMMAND pkg-config --cflags --libs novoht OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${COMPILER} -std=c++20 -I${work} ${SOURCE}/tests/novoht/outside/main.cc ${flags} -o ${work}/by_pkg_config)
run(${work}/by_pkg_config ${work}/store2)
run(${work}/prefix/bin/novoht get ${work}/store2 k)
if(NOT output STREQUAL "v")
  message(FATAL_ERROR "novoht get printed: ${output}")
endif()
file(REMOVE_RECURSE ${work})
