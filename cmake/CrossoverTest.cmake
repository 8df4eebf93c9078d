# Test helpers. Every test gets a watchdog (TIMEOUT) and a label; no test asserts an upper time bound.

# crossover_unit_test(NAME SOURCES ... [LIBRARIES ...] [LABEL unit] [TIMEOUT 60]): one GoogleTest binary, one
# ctest entry per test case.
function(crossover_unit_test name)
    cmake_parse_arguments(arg "" "LABEL;TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
    if(arg_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "crossover_unit_test(${name}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
    endif()
    if(NOT arg_LABEL)
        set(arg_LABEL unit)
    endif()
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 60)
    endif()
    add_executable(${name} ${arg_SOURCES})
    target_link_libraries(${name} PRIVATE crossover_options crossover_sanitize ${arg_LIBRARIES} GTest::gtest_main
                                          Threads::Threads)
    # What is tested is built as it is used; the tests' own code only soon: these options halve the compiler's time.
    target_compile_options(${name} PRIVATE -O1 -g1)
    include(GoogleTest)
    gtest_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST
                         PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT})
endfunction()
