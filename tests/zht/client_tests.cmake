add_unit_test(zht_support_test
  SOURCES support_test.cc program_test.cc
  USES zht_support)
add_unit_test(zht_types_test
  SOURCES types_test.cc
  USES zht_api)
