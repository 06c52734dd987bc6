add_unit_test(zht_replication_test
  SOURCES replication_test.cc keepership_test.cc sightings_test.cc
  USES zht_replication)
