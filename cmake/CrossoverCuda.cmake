# Finds the CUDA and NCCL headers and nvcc: CROSSOVER_CUDA_ROOT, else an installed toolkit, else the folder
# that scripts/bootstrap filled from PyPI's nvidia wheels. Only headers and the compiler are used: nothing in
# this project links libcuda, libcudart or libnccl of the machine it is built on.
#   crossover_cuda_headers  INTERFACE target: cuda.h, cuda_runtime_api.h, nccl.h
#   CROSSOVER_NVCC          path of nvcc
set(CROSSOVER_CUDA_ROOT "" CACHE PATH "CUDA toolkit to take the headers and nvcc from")
set(_hints ${CROSSOVER_CUDA_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH} ${PROJECT_SOURCE_DIR}/build/cuda /usr/local/cuda)

find_path(CROSSOVER_CUDA_INCLUDE cuda_runtime_api.h HINTS ${_hints} PATH_SUFFIXES include)
find_path(CROSSOVER_NCCL_INCLUDE nccl.h HINTS ${_hints} PATH_SUFFIXES include)
find_program(CROSSOVER_NVCC nvcc HINTS ${_hints} PATH_SUFFIXES bin)
if(NOT CROSSOVER_CUDA_INCLUDE OR NOT CROSSOVER_NCCL_INCLUDE)
    message(FATAL_ERROR "CUDA or NCCL headers not found; run scripts/bootstrap or set CROSSOVER_CUDA_ROOT")
endif()

add_library(crossover_cuda_headers INTERFACE)
target_include_directories(crossover_cuda_headers SYSTEM INTERFACE
    ${CROSSOVER_CUDA_INCLUDE} ${CROSSOVER_NCCL_INCLUDE})
message(STATUS "CUDA headers: ${CROSSOVER_CUDA_INCLUDE}; NCCL headers: ${CROSSOVER_NCCL_INCLUDE}; nvcc: ${CROSSOVER_NVCC}")
