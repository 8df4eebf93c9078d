# Where collectives are seen from: each source alone, all at once, and the user's own profiler. Whole jobs in real time:
# beside one another they would only be slower.
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
if(TARGET hvd_train)
    foreach(case calls_alone names_alone names_at_look_up_alone profiler_6_alone profiler_5_alone profiler_4_alone
                 profiler_3_alone profiler_2_alone profiler_1_alone all_sources_count_once
                 the_users_profiler_comes_first the_users_profiler_beside_nccl_comes_first
                 a_profiler_named_by_the_user_comes_first every_interface_of_the_virtual_nccl
                 static_nccl_takes_turns two_static_nccl_take_turns)
        crossover_preload_test(detection.${case}
            COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/detection_test.py Detection.test_${case}
            ENVIRONMENT "CROSSOVER_BUILD=${CMAKE_BINARY_DIR};SIMGPU_BUILD=${CMAKE_BINARY_DIR}" TIMEOUT 120)
        set_tests_properties(preload.detection.${case} PROPERTIES RESOURCE_LOCK whole_jobs)
    endforeach()
endif()

# Before the first CUDA call the file that NCCL looks for is as little there as without the library.
crossover_preload_test(detection.no_profiler_before_cuda COMMAND ${same} -- python3 -c
    "import ctypes; ctypes.CDLL('libnccl-profiler.so')")
