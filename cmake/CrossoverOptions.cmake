# crossover_options: the compile and link options every target of this project shares.
# crossover_sanitize: links in the chosen sanitizer. The preloaded library and the virtual GPU's libraries
# never take it: they are loaded into programs that were not built with a sanitizer runtime.
add_library(crossover_options INTERFACE)
target_compile_options(crossover_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast
        -Woverloaded-virtual -Wcast-align>
    $<$<AND:$<BOOL:${CROSSOVER_WERROR}>,$<COMPILE_LANGUAGE:CXX,C>>:-Werror>)

add_library(crossover_sanitize INTERFACE)
if(CROSSOVER_SANITIZE STREQUAL "address")
    target_compile_options(crossover_sanitize INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer
        -fno-sanitize-recover=undefined)
    target_link_options(crossover_sanitize INTERFACE -fsanitize=address,undefined)
elseif(CROSSOVER_SANITIZE STREQUAL "thread")
    target_compile_options(crossover_sanitize INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
    target_link_options(crossover_sanitize INTERFACE -fsanitize=thread)
elseif(CROSSOVER_SANITIZE)
    message(FATAL_ERROR "CROSSOVER_SANITIZE is '${CROSSOVER_SANITIZE}'; allowed: address, thread or empty")
endif()
