# Real programs and the vendors' real libraries under the preload, as far as this machine has them: what is missing is
# skipped. scripts/real-programs and scripts/handshake hold the cases; what needs a download is in docs/nightly.md.
set(real_programs ${PROJECT_SOURCE_DIR}/scripts/real-programs)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${real_programs})
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND ${Python3_EXECUTABLE} -B ${real_programs} --list
                OUTPUT_VARIABLE cases OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" cases "${cases}")
foreach(case ${cases})
    # The kind of report that a case is an example of.
    set(kind K24)  # inherited by every child
    if(case MATCHES "malloc")
        set(kind K09)  # allocators that look symbols up
    elseif(case MATCHES "asan|tsan")
        set(kind K14)  # order of preloads
    endif()
    crossover_preload_test(${kind}_real_${case} TIMEOUT 300
        COMMAND ${Python3_EXECUTABLE} -B ${real_programs} --build ${CMAKE_BINARY_DIR} ${case})
    set_tests_properties(preload.${kind}_real_${case} PROPERTIES SKIP_RETURN_CODE 77)
endforeach()
# A library that does change a program is found out.
crossover_preload_test(K24_real_programs_finds_a_difference TIMEOUT 300
    COMMAND ${Python3_EXECUTABLE} -B ${real_programs} --library $<TARGET_FILE:next_preload> compiler)
set_tests_properties(preload.K24_real_programs_finds_a_difference PROPERTIES
                     PASS_REGULAR_EXPRESSION "output differs with the library first.*wrapped: executed")

set(handshake ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/scripts/handshake --build ${CMAKE_BINARY_DIR})
crossover_preload_test(K01_real_libraries_look_ups COMMAND ${handshake} TIMEOUT 300)
crossover_preload_test(K01_real_libraries_losses_are_found COMMAND ${handshake} --without-library --only cudart TIMEOUT 300)
set_tests_properties(preload.K01_real_libraries_look_ups preload.K01_real_libraries_losses_are_found
                     PROPERTIES SKIP_RETURN_CODE 77)
set_tests_properties(preload.K01_real_libraries_losses_are_found
                     PROPERTIES PASS_REGULAR_EXPRESSION "lost 1 times: cuLaunchKernel from libcuda")

# The rows on a driver that has every function, those that the virtual GPU's lacks included.
crossover_preload_test(K16_rows_of_a_full_driver COMMAND recorder_rows_test
    ENVIRONMENT LD_PRELOAD=${library} LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/tests/recorder/lib CROSSOVER_LOG=none)

crossover_preload_test(K16_real_libraries_launches_are_seen TIMEOUT 300
    COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/scripts/check-coverage --build ${CMAKE_BINARY_DIR})
set_tests_properties(preload.K16_real_libraries_launches_are_seen PROPERTIES SKIP_RETURN_CODE 77)
