# The library as a guest: life and death of the process it is loaded into, and captures. Names say which kind of public
# bug report (K…) a test answers.
set(guest_machine ${PROJECT_SOURCE_DIR}/scripts/simgpu-run --devices 4 --)

add_library(guest_machine STATIC guest_machine.cpp)
target_link_libraries(guest_machine PRIVATE crossover_options)
target_link_libraries(guest_machine PUBLIC crossover_arbiter)
target_include_directories(guest_machine PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_definitions(guest_machine PRIVATE
    CX_TEST_LIBRARY="${library}" CX_TEST_KERNELS="$<TARGET_FILE:simgpu_client_test_kernels>"
    CX_TEST_GUEST="$<TARGET_FILE:guest_cuda>")
add_dependencies(guest_machine crossover_shim guest_cuda simgpu_client_test_kernels simgpu_server)

add_executable(guest_test guest_test.cpp guest_waits_test.cpp)
target_link_libraries(guest_test PRIVATE guest_machine crossover_options GTest::gtest_main Threads::Threads)
target_compile_definitions(guest_test PRIVATE CX_TEST_LIBRARY="${library}"
                                              CX_TEST_NO_THREADS="$<TARGET_FILE:guest_refuse>")
add_dependencies(guest_test guest_refuse)

# crossover_guest_test(NAME FILTER [TIMEOUT 120]): cases of guest_test, on a machine of their own.
function(crossover_guest_test name filter)
    cmake_parse_arguments(arg "" "TIMEOUT" "" ${ARGN})
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 120)
    endif()
    crossover_preload_test(${name} TIMEOUT ${arg_TIMEOUT} ENVIRONMENT SIMGPU_BUILD=${CMAKE_BINARY_DIR}
                           COMMAND ${guest_machine} $<TARGET_FILE:guest_test> --gtest_filter=${filter})
endfunction()

crossover_guest_test(K18_no_context_other_device "GuestContexts.*")
crossover_guest_test(K21_fork_while_launching "GuestForks.*" TIMEOUT 300)
crossover_guest_test(K22_exec_of_itself "GuestExec.*")
crossover_guest_test(K23_process_unchanged "GuestSnapshot.*")
crossover_guest_test(K23_every_end "All/GuestEnds.*" TIMEOUT 180)
crossover_guest_test(K25_helper_thread_refused "GuestRefused.*")
crossover_guest_test(K27_segment_refused "GuestFolder.*")
crossover_guest_test(K28_first_launch_at_once "GuestStart.*")
crossover_guest_test(K29_device_identity "GuestDevices.*")
crossover_guest_test(K30_bounded_wait "GuestBounds.*")
crossover_guest_test(threads_end_with_work "GuestThreads.*")
crossover_guest_test(waiting_threads_let_through "All/GuestLetThrough.*" TIMEOUT 180)
crossover_guest_test(segment_replaced_while_running "GuestMoves.*" TIMEOUT 180)
crossover_guest_test(context_ends_while_launching "All/GuestVanish.*" TIMEOUT 180)

add_test(NAME preload.K23_no_static_destructors
         COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/guest_no_destructors.sh $<TARGET_OBJECTS:crossover_shim>
                 $<TARGET_OBJECTS:crossover_inference> $<TARGET_OBJECTS:crossover_arbiter>
         COMMAND_EXPAND_LISTS)
set_tests_properties(preload.K23_no_static_destructors PROPERTIES LABELS preload TIMEOUT 60)

if(TARGET dp_train)
    crossover_preload_test(K31_gangs_in_every_order TIMEOUT 300 ENVIRONMENT SIMGPU_BUILD=${CMAKE_BINARY_DIR}
                           COMMAND ${guest_machine} ${CMAKE_CURRENT_SOURCE_DIR}/guest_gang.sh ${library}
                                   $<TARGET_FILE:dp_train>)
endif()

# A program with the address sanitizer wants its runtime first; the library comes behind it.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libasan.so
                OUTPUT_VARIABLE asan_runtime OUTPUT_STRIP_TRAILING_WHITESPACE)
if(IS_ABSOLUTE "${asan_runtime}")
    crossover_preload_test(K14_behind_the_address_sanitizer
        ENVIRONMENT SIMGPU_BUILD=${CMAKE_BINARY_DIR}
        COMMAND ${guest_machine} ${CMAKE_CURRENT_SOURCE_DIR}/guest_asan.sh ${library} ${asan_runtime}
                $<TARGET_FILE:guest_cuda_asan> $<TARGET_FILE:simgpu_client_test_kernels>)
endif()
