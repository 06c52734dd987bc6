add_unit_test(zht_support_test
  SOURCES support_test.cc program_test.cc
  USES zht_support)
add_unit_test(zht_types_test
  SOURCES types_test.cc
  USES zht_api)
add_unit_test(zht_client_unit_test
  SOURCES client_unit_test.cc eventual_lookup_test.cc pipe_line_test.cc
  USES zht_client zht_pipe zht_proto)
# Runs the `zht` program as its node.
add_unit_test(zht_client_server_test
  SOURCES client_server_test.cc
  USES zht_client zht_proto TIMEOUT 300)
add_dependencies(zht_client_server_test zht_program)
add_unit_test(zht_cli_test
  SOURCES cli_test.cc
  USES zht_support TIMEOUT 300)
add_dependencies(zht_cli_test zht_program)
# Has its node inside.
add_unit_test(zht_client_node_test
  SOURCES client_node_test.cc client_async_test.cc
  USES zht_node zht_asio)
# The C API, from plain C.
add_executable(zht_c_api_test c_api_test.c)
target_link_libraries(zht_c_api_test PRIVATE zht_c)
set_target_properties(zht_c_api_test PROPERTIES C_STANDARD 11 C_EXTENSIONS OFF C_STANDARD_REQUIRED ON
                      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_test(NAME zht_c_api COMMAND zht_c_api_test)
set_tests_properties(zht_c_api PROPERTIES TIMEOUT 120)
add_dependencies(zht_client_node_test zht_c_api_test)  # who builds the unit tests alone has this one too
# The Python package, installed by pip into a venv. Not with a sanitizer, whose library no plain python can load.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
if(NOT ZHT_SANITIZE)
  add_test(NAME zht_python COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/python/client_test.py)
  set_tests_properties(zht_python PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 ENVIRONMENT "ZHT_BUILD=${CMAKE_BINARY_DIR}")
endif()
# Projects outside the tree, with the installed libraries.
if(NOT ZHT_SANITIZE)
  add_test(NAME zht_outside COMMAND ${CMAKE_COMMAND} -DBUILD=${CMAKE_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}
           -DCXX=${CMAKE_CXX_COMPILER} -DCC=${CMAKE_C_COMPILER} -P ${CMAKE_CURRENT_SOURCE_DIR}/outside/test.cmake)
  set_tests_properties(zht_outside PROPERTIES TIMEOUT 600)
endif()
