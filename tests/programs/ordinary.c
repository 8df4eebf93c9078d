// SPDX-License-Identifier: Apache-2.0
// An ordinary program: allocates in threads, looks up a symbol, forks, executes, uses thread-local storage. Its output
// is the same at every run. scripts/real-programs builds it in several ways; it knows nothing of CUDA or Crossover.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifndef ORDINARY_STATIC
#include <dlfcn.h>
#endif

static __thread unsigned long sum;

static void* allocate(void* seed) {
    unsigned long state = (unsigned long)seed + 1;
    for (int round = 0; round < 2000; ++round) {
        state = state * 1103515245ul + 12345ul;
        const size_t size = 1 + state % 5000;
        unsigned char* block = malloc(size);
        if (block == NULL) {
            return NULL;
        }
        memset(block, round & 255, size);
        sum += block[size - 1];
        free(block);
    }
    return (void*)sum;
}

int main(int count, char** arguments) {
    if (count > 1 && strcmp(arguments[1], "again") == 0) {
        puts("executed");
        return 0;
    }
    pthread_t threads[4];
    unsigned long total = 0;
    for (unsigned long each = 0; each < 4; ++each) {
        if (pthread_create(&threads[each], NULL, allocate, (void*)each) != 0) {
            return 1;
        }
    }
    for (int each = 0; each < 4; ++each) {
        void* result;
        pthread_join(threads[each], &result);
        total += (unsigned long)result;
    }
    printf("sum %lu\n", total);
#ifndef ORDINARY_STATIC
    printf("found %d %d\n", dlsym(RTLD_DEFAULT, "getpid") != NULL, dlsym(RTLD_DEFAULT, "cuInit") != NULL);
#endif
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", arguments[0], "again", (char*)NULL);
        _exit(2);
    }
    int status;
    waitpid(child, &status, 0);
    fprintf(stderr, "child %d\n", WEXITSTATUS(status));
    return 5;
}
