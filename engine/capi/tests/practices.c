/* The five practices for memory on many GPUs, and what happens when they are not followed.
 *
 * Runs on whatever DS4_BACKEND names, with small budgets, on four GPUs or as many as there are. */

#include <ds4.h>

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define BUDGET (192 * MIB)

#define CHECK(what)                                                                          \
    do {                                                                                     \
        if (!(what)) {                                                                       \
            fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, \
                    #what, ds4_gpu_mgpu_last_error());                                       \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

static int num_gpus;

static ds4_gpu_mgpu_pool_stats_t stats_of(int device) {
    ds4_gpu_mgpu_pool_stats_t stats;
    CHECK(ds4_gpu_mgpu_pool_stats(device, &stats) == DS4_OK);
    return stats;
}

static int error_has(const char *part) {
    return strstr(ds4_gpu_mgpu_last_error(), part) != NULL;
}

static void *inside(void *block, size_t bytes) {
    return (void *)((uintptr_t)block + bytes);
}

static ds4_gpu_placement_t only(int device) {
    ds4_gpu_placement_t hint;
    hint.mask = (uint32_t)1 << device;
    return hint;
}

static ds4_gpu_mgpu_config_t small_budgets(void) {
    ds4_gpu_mgpu_config_t config;
    int device;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    for (device = 0; device < num_gpus; device++)
        config.budget_bytes[device] = BUDGET;
    return config;
}

/* Nothing works before init, and every function says so. */
static void calls_before_init_are_errors(void) {
    ds4_gpu_mgpu_pool_stats_t stats;
    int something = 0;
    uint32_t stream;
    CHECK(ds4_gpu_mgpu_alloc(MIB, NULL) == NULL);
    CHECK(ds4_gpu_mgpu_last_status() == DS4_NOT_INITIALIZED);
    CHECK(error_has("ds4_gpu_mgpu_init"));
    CHECK(ds4_gpu_mgpu_free(&something) == DS4_NOT_INITIALIZED);
    CHECK(ds4_gpu_mgpu_free(NULL) == DS4_OK);
    CHECK(ds4_gpu_mgpu_record_use(&something, 0) == DS4_NOT_INITIALIZED);
    CHECK(ds4_gpu_mgpu_stream_create(0, &stream) == DS4_NOT_INITIALIZED);
    CHECK(ds4_gpu_mgpu_stream_adopt(0, NULL, &stream) == DS4_NOT_INITIALIZED);
    CHECK(ds4_gpu_mgpu_synchronize(0) == DS4_NOT_INITIALIZED);
    CHECK(ds4_gpu_mgpu_device_of(&something) == -1);
    CHECK(ds4_gpu_mgpu_copy(&something, &something, 1, NULL) == DS4_NOT_INITIALIZED);
    CHECK(ds4_gpu_mgpu_trim(NULL) == DS4_NOT_INITIALIZED);
    CHECK(ds4_gpu_mgpu_pool_stats(0, &stats) == DS4_NOT_INITIALIZED);
    CHECK(ds4_gpu_mgpu_shutdown() == DS4_NOT_INITIALIZED);
}

/* A configuration that makes no sense is refused before a device is opened. */
static void wrong_configurations_are_refused(void) {
    struct {
        ds4_gpu_mgpu_config_t config;
        uint64_t later;
    } newer;
    ds4_gpu_mgpu_config_t config = small_budgets();
    CHECK(ds4_gpu_mgpu_init(0, &config) == DS4_INVALID_ARGUMENT);
    CHECK(ds4_gpu_mgpu_init(-1, &config) == DS4_INVALID_ARGUMENT);
    CHECK(ds4_gpu_mgpu_init(33, &config) == DS4_INVALID_ARGUMENT && error_has("33"));
    config.struct_size = 0;
    CHECK(ds4_gpu_mgpu_init(num_gpus, &config) == DS4_INVALID_ARGUMENT);
    CHECK(error_has("struct_size"));
    config.struct_size = sizeof config - 1;
    CHECK(ds4_gpu_mgpu_init(num_gpus, &config) == DS4_INVALID_ARGUMENT);
    CHECK(error_has("struct_size"));
    config = small_budgets();
    config.backend = "metal";
    CHECK(ds4_gpu_mgpu_init(num_gpus, &config) == DS4_INVALID_ARGUMENT && error_has("metal"));
    config = small_budgets();
    config.backend = "\xff";
    CHECK(ds4_gpu_mgpu_init(num_gpus, &config) == DS4_INVALID_ARGUMENT && error_has("UTF-8"));
    config = small_budgets();
    config.budget_bytes[31] = MIB;
    CHECK(num_gpus == 32 || ds4_gpu_mgpu_init(num_gpus, &config) == DS4_INVALID_ARGUMENT);
    config = small_budgets();
    config.exclude_mask = 0x80000000u;
    CHECK(num_gpus == 32 || ds4_gpu_mgpu_init(num_gpus, &config) == DS4_INVALID_ARGUMENT);
    config = small_budgets();
    config.reserve_bytes[0] = BUDGET;
    CHECK(ds4_gpu_mgpu_init(num_gpus, &config) == DS4_INVALID_ARGUMENT);
    /* What a later version adds is refused only when it is set. */
    memset(&newer, 0, sizeof newer);
    newer.config = small_budgets();
    newer.config.struct_size = sizeof newer;
    newer.later = 1;
    CHECK(ds4_gpu_mgpu_init(num_gpus, &newer.config) == DS4_INVALID_ARGUMENT);
    newer.later = 0;
    CHECK(ds4_gpu_mgpu_init(num_gpus, &newer.config) == DS4_OK);
    CHECK(ds4_gpu_mgpu_shutdown() == DS4_OK);
}

/* 1. Initialize early with the number of GPUs that were found. */
static void initialize_early(void) {
    ds4_gpu_mgpu_config_t config = small_budgets();
    int device;
    if (ds4_gpu_mgpu_init(num_gpus, &config) != 0) {
        fprintf(stderr, "GPU init failed: %s\n", ds4_gpu_mgpu_last_error());
        exit(1);
    }
    CHECK(ds4_gpu_mgpu_init(num_gpus, &config) == DS4_ALREADY_INITIALIZED);
    for (device = 0; device < num_gpus; device++) {
        ds4_gpu_mgpu_pool_stats_t stats = stats_of(device);
        CHECK(stats.budget_bytes == BUDGET);
        CHECK(stats.used_bytes == 0 && stats.live_blocks == 0);
    }
}

/* 2. One bit for data that is sharded: it lands there and nowhere else. */
static void one_bit_is_that_gpu(void) {
    int device;
    for (device = 0; device < num_gpus; device++) {
        ds4_gpu_placement_t hint = only(device);
        void *weights = ds4_gpu_mgpu_alloc(64ULL * 1024 * 1024, &hint);
        CHECK(weights != NULL && (uintptr_t)weights % 256 == 0);
        CHECK(ds4_gpu_mgpu_device_of(weights) == device);
        CHECK(ds4_gpu_mgpu_device_of(inside(weights, 64 * MIB - 1)) == device);
        CHECK(stats_of(device).used_bytes == 64 * MIB);
        CHECK(ds4_gpu_mgpu_free(weights) == DS4_OK);
    }
}

/* 3. Many bits are alternatives: the least loaded of them is taken. */
static void many_bits_are_alternatives(void) {
    ds4_gpu_placement_t first = only(0);
    ds4_gpu_placement_t either;
    void *weights = ds4_gpu_mgpu_alloc(64 * MIB, &first);
    void *activations;
    either.mask = (1 << 0) | (1 << 1);
    activations = ds4_gpu_mgpu_alloc(32ULL * 1024 * 1024, &either);
    CHECK(weights != NULL && activations != NULL);
    CHECK(ds4_gpu_mgpu_device_of(weights) == 0);
    CHECK(ds4_gpu_mgpu_device_of(activations) == (num_gpus > 1 ? 1 : 0));
    CHECK(ds4_gpu_mgpu_free(activations) == DS4_OK);
    CHECK(ds4_gpu_mgpu_free(weights) == DS4_OK);
}

/* No hint spreads equal requests over all GPUs before any gets two. */
static void no_hint_spreads(void) {
    void *blocks[32];
    uint32_t seen = 0;
    int device;
    for (device = 0; device < num_gpus; device++) {
        blocks[device] = ds4_gpu_mgpu_alloc(MIB, NULL);
        CHECK(blocks[device] != NULL);
        seen |= (uint32_t)1 << ds4_gpu_mgpu_device_of(blocks[device]);
    }
    CHECK(seen == (uint32_t)(((uint64_t)1 << num_gpus) - 1));
    for (device = 0; device < num_gpus; device++)
        CHECK(ds4_gpu_mgpu_free(blocks[device]) == DS4_OK);
}

/* 4. A refusal changes nothing, says why, and a relaxed hint finds room at once. */
static void a_refusal_is_answered_by_a_relaxed_hint(void) {
    int last = num_gpus - 1;
    ds4_gpu_placement_t hint = only(last);
    size_t bytes = 128ULL * 1024 * 1024;
    void *filler = ds4_gpu_mgpu_alloc(bytes, &hint);
    ds4_gpu_mgpu_pool_stats_t before, after;
    void *buf;
    CHECK(filler != NULL);
    before = stats_of(last);
    buf = ds4_gpu_mgpu_alloc(bytes, &hint);
    CHECK(buf == NULL);
    CHECK(ds4_gpu_mgpu_last_status() == DS4_REFUSED);
    CHECK(error_has("refused 128 MiB") && error_has("192 MiB"));
    after = stats_of(last);
    CHECK(after.refusals == before.refusals + 1);
    after.refusals = before.refusals;
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    if (num_gpus > 1) {
        hint.mask = 0xFFFFFFFF; /* All 32 possible GPUs */
        buf = ds4_gpu_mgpu_alloc(bytes, &hint);
        CHECK(buf != NULL && ds4_gpu_mgpu_device_of(buf) != last);
        CHECK(ds4_gpu_mgpu_free(buf) == DS4_OK);
        hint = only(last);
    }
    /* The same request succeeds as soon as enough is freed. */
    CHECK(ds4_gpu_mgpu_free(filler) == DS4_OK);
    buf = ds4_gpu_mgpu_alloc(bytes, &hint);
    CHECK(buf != NULL && ds4_gpu_mgpu_device_of(buf) == last);
    CHECK(ds4_gpu_mgpu_free(buf) == DS4_OK);
}

/* 5. Free through the interface: its books follow, and what it did not give out is refused. */
static void only_what_was_given_out_is_taken_back(void) {
    ds4_gpu_placement_t hint = only(0);
    ds4_gpu_mgpu_pool_stats_t before = stats_of(0), after;
    void *block = ds4_gpu_mgpu_alloc(MIB, &hint);
    int on_the_stack = 0;
    CHECK(block != NULL);
    CHECK(stats_of(0).live_blocks == before.live_blocks + 1);
    CHECK(ds4_gpu_mgpu_free(inside(block, 256)) == DS4_INTERIOR_POINTER && error_has("inside"));
    CHECK(ds4_gpu_mgpu_free(inside(block, 1)) == DS4_INTERIOR_POINTER);
    CHECK(ds4_gpu_mgpu_free(&on_the_stack) == DS4_FOREIGN_POINTER && error_has("not memory of"));
    CHECK(stats_of(0).live_blocks == before.live_blocks + 1);
    CHECK(ds4_gpu_mgpu_free(block) == DS4_OK);
    CHECK(ds4_gpu_mgpu_free(block) == DS4_DOUBLE_FREE && error_has("freed before"));
    CHECK(ds4_gpu_mgpu_free(NULL) == DS4_OK);
    after = stats_of(0);
    CHECK(after.used_bytes == before.used_bytes && after.frees == before.frees + 1);
}

/* Requests that no GPU could take are refused without trying one. */
static void sizes_that_make_no_sense_are_errors(void) {
    CHECK(ds4_gpu_mgpu_alloc(0, NULL) == NULL);
    CHECK(ds4_gpu_mgpu_last_status() == DS4_INVALID_ARGUMENT && error_has("0 bytes"));
    CHECK(ds4_gpu_mgpu_alloc(SIZE_MAX, NULL) == NULL);
    CHECK(ds4_gpu_mgpu_last_status() == DS4_INVALID_ARGUMENT);
    CHECK(ds4_gpu_mgpu_alloc((size_t)-1024, NULL) == NULL);
    CHECK(ds4_gpu_mgpu_last_status() == DS4_INVALID_ARGUMENT);
    CHECK(ds4_gpu_mgpu_alloc((size_t)1 << 60, NULL) == NULL);
    CHECK(ds4_gpu_mgpu_last_status() == DS4_REFUSED);
    CHECK(ds4_gpu_mgpu_pool_stats(num_gpus, NULL) == DS4_INVALID_ARGUMENT);
    CHECK(ds4_gpu_mgpu_pool_stats(0, NULL) == DS4_INVALID_ARGUMENT && error_has("NULL"));
    CHECK(ds4_gpu_mgpu_synchronize(-1) == DS4_INVALID_ARGUMENT);
    CHECK(ds4_gpu_mgpu_stream_create(99, NULL) == DS4_INVALID_ARGUMENT);
}

/* Bytes arrive, also between GPUs, and the way that they took is told. */
static void copies_say_their_path(void) {
    char sent[1024], received[1024];
    int last = num_gpus - 1, path = 0;
    ds4_gpu_placement_t here = only(0), there = only(last);
    void *from = ds4_gpu_mgpu_alloc(sizeof sent + 512, &here);
    void *near = ds4_gpu_mgpu_alloc(sizeof sent, &here);
    void *far = ds4_gpu_mgpu_alloc(sizeof sent, &there);
    size_t place;
    CHECK(from != NULL && near != NULL && far != NULL);
    for (place = 0; place < sizeof sent; place++)
        sent[place] = (char)(place * 7 + 3);
    CHECK(ds4_gpu_mgpu_write(inside(from, 512), sent, sizeof sent) == DS4_OK);
    CHECK(ds4_gpu_mgpu_copy(near, inside(from, 512), sizeof sent, &path) == DS4_OK);
    CHECK(path == DS4_COPY_SAME_DEVICE);
    CHECK(ds4_gpu_mgpu_copy(far, near, sizeof sent, &path) == DS4_OK);
    CHECK(path == (last == 0 ? DS4_COPY_SAME_DEVICE : path));
    CHECK(path >= DS4_COPY_SAME_DEVICE && path <= DS4_COPY_HOST_BOUNCE);
    memset(received, 0, sizeof received);
    CHECK(ds4_gpu_mgpu_read(received, far, sizeof received) == DS4_OK);
    CHECK(memcmp(sent, received, sizeof sent) == 0);
    CHECK(ds4_gpu_mgpu_copy(far, from, sizeof sent + 512, NULL) == DS4_INVALID_ARGUMENT);
    CHECK(ds4_gpu_mgpu_copy(inside(from, 256), from, 512, NULL) == DS4_INVALID_ARGUMENT);
    CHECK(ds4_gpu_mgpu_copy(far, sent, 1, NULL) == DS4_FOREIGN_POINTER);
    CHECK(ds4_gpu_mgpu_write(far, sent, sizeof sent + 1) == DS4_INVALID_ARGUMENT);
    CHECK(ds4_gpu_mgpu_read(received, inside(far, 1), SIZE_MAX) == DS4_INVALID_ARGUMENT);
    CHECK(error_has("leave a block of 1024 bytes"));
    CHECK(ds4_gpu_mgpu_write(far, NULL, 1) == DS4_INVALID_ARGUMENT && error_has("host is NULL"));
    CHECK(ds4_gpu_mgpu_write(far, NULL, 0) == DS4_OK);
    CHECK(ds4_gpu_mgpu_free(far) == DS4_OK);
    CHECK(ds4_gpu_mgpu_copy(far, near, 1, NULL) == DS4_DOUBLE_FREE);
    CHECK(ds4_gpu_mgpu_free(near) == DS4_OK);
    CHECK(ds4_gpu_mgpu_free(from) == DS4_OK);
}

/* Memory of a stream is its own again at once; a stream that nobody made is refused. */
static void streams_have_their_own_order(void) {
    ds4_gpu_placement_t hint = only(0);
    uint32_t stream = 0, second = 0, same = 1;
    void *block, *again;
    CHECK(ds4_gpu_mgpu_stream_create(0, &stream) == DS4_OK && stream != 0);
    CHECK(ds4_gpu_mgpu_stream_create(0, &second) == DS4_OK && second != stream);
    CHECK(ds4_gpu_mgpu_stream_adopt(0, NULL, &same) == DS4_OK && same == 0);
    block = ds4_gpu_mgpu_alloc_on(MIB, &hint, stream);
    CHECK(block != NULL);
    CHECK(ds4_gpu_mgpu_free(block) == DS4_OK);
    again = ds4_gpu_mgpu_alloc_on(MIB, &hint, stream);
    CHECK(again != NULL);
    CHECK(ds4_gpu_mgpu_record_use(again, second) == DS4_OK);
    CHECK(ds4_gpu_mgpu_record_use(again, 9999) == DS4_INVALID_ARGUMENT);
    CHECK(error_has("9999"));
    CHECK(ds4_gpu_mgpu_record_use(inside(again, 256), second) == DS4_INTERIOR_POINTER);
    CHECK(ds4_gpu_mgpu_free(again) == DS4_OK);
    CHECK(ds4_gpu_mgpu_alloc_on(MIB, &hint, 9999) == NULL);
    CHECK(ds4_gpu_mgpu_last_status() == DS4_REFUSED && error_has("9999"));
    CHECK(ds4_gpu_mgpu_synchronize(0) == DS4_OK);
}

#define THREADS 8
#define ROUNDS 2000
#define KEPT 16

/* Each thread's errors are its own, and its blocks no other's. */
static void *churn(void *argument) {
    uint32_t state = (uint32_t)(uintptr_t)argument * 2654435761u + 1;
    void *kept[KEPT] = {NULL};
    int round, slot;
    CHECK(ds4_gpu_mgpu_last_status() == DS4_OK);
    for (round = 0; round < ROUNDS; round++) {
        ds4_gpu_placement_t hint;
        state = state * 1664525u + 1013904223u;
        slot = (int)(state >> 28);
        CHECK(ds4_gpu_mgpu_free(kept[slot]) == DS4_OK);
        hint.mask = (state >> 8) & 0xF;
        kept[slot] = ds4_gpu_mgpu_alloc(256 + (state >> 12) % (MIB / 2), &hint);
        CHECK(kept[slot] != NULL || ds4_gpu_mgpu_last_status() == DS4_REFUSED);
    }
    CHECK(ds4_gpu_mgpu_free(argument) == DS4_FOREIGN_POINTER);
    for (slot = 0; slot < KEPT; slot++)
        CHECK(ds4_gpu_mgpu_free(kept[slot]) == DS4_OK);
    return NULL;
}

static void threads_do_not_meet(void) {
    pthread_t threads[THREADS];
    int thread, device;
    for (thread = 0; thread < THREADS; thread++)
        CHECK(pthread_create(&threads[thread], NULL, churn, (void *)(uintptr_t)(thread + 1)) == 0);
    for (thread = 0; thread < THREADS; thread++)
        CHECK(pthread_join(threads[thread], NULL) == 0);
    for (device = 0; device < num_gpus; device++)
        CHECK(stats_of(device).live_blocks == 0 && stats_of(device).used_bytes == 0);
}

/* Whoever calls while another thread shuts down gets an answer, and never memory that is gone. */
static void *call_until_shut_down(void *argument) {
    (void)argument;
    for (;;) {
        void *block = ds4_gpu_mgpu_alloc(MIB, NULL);
        if (block == NULL && ds4_gpu_mgpu_last_status() == DS4_NOT_INITIALIZED)
            return NULL;
        CHECK(block != NULL || ds4_gpu_mgpu_last_status() == DS4_REFUSED);
        if (block != NULL) {
            int freed = ds4_gpu_mgpu_free(block);
            CHECK(freed == DS4_OK || freed == DS4_NOT_INITIALIZED);
        }
    }
}

static void shutting_down_waits_for_calls(void) {
    pthread_t threads[THREADS];
    int thread;
    uint64_t returned = 0;
    void *block = ds4_gpu_mgpu_alloc(MIB, NULL);
    CHECK(block != NULL && stats_of(0).reserved_bytes > 0);
    CHECK(ds4_gpu_mgpu_trim(&returned) == DS4_OK);
    for (thread = 0; thread < THREADS; thread++)
        CHECK(pthread_create(&threads[thread], NULL, call_until_shut_down, NULL) == 0);
    CHECK(ds4_gpu_mgpu_shutdown() == DS4_OK);
    for (thread = 0; thread < THREADS; thread++)
        CHECK(pthread_join(threads[thread], NULL) == 0);
    CHECK(ds4_gpu_mgpu_free(block) == DS4_NOT_INITIALIZED);
    CHECK(ds4_gpu_mgpu_shutdown() == DS4_NOT_INITIALIZED);
}

/* A hint of which no GPU exists goes to the least loaded one, or is refused on demand. */
static void orphaned_hints_follow_the_configuration(void) {
    ds4_gpu_mgpu_config_t config = small_budgets();
    ds4_gpu_placement_t nowhere = only(31);
    void *block;
    if (num_gpus == 32)
        return;
    CHECK(ds4_gpu_mgpu_init(num_gpus, &config) == DS4_OK);
    block = ds4_gpu_mgpu_alloc(MIB, &nowhere);
    CHECK(block != NULL && ds4_gpu_mgpu_device_of(block) == 0);
    CHECK(ds4_gpu_mgpu_shutdown() == DS4_OK);
    config.strict_hints = 1;
    config.exclude_mask = num_gpus > 1 ? 1 : 0;
    CHECK(ds4_gpu_mgpu_init(num_gpus, &config) == DS4_OK);
    CHECK(ds4_gpu_mgpu_alloc(MIB, &nowhere) == NULL);
    CHECK(ds4_gpu_mgpu_last_status() == DS4_REFUSED && error_has("names none of"));
    if (num_gpus > 1) {
        ds4_gpu_placement_t excluded = only(0);
        ds4_gpu_mgpu_pool_stats_t stats;
        CHECK(ds4_gpu_mgpu_alloc(MIB, &excluded) == NULL && error_has("excluded"));
        CHECK(ds4_gpu_mgpu_pool_stats(0, &stats) == DS4_INVALID_ARGUMENT);
    }
    CHECK(ds4_gpu_mgpu_shutdown() == DS4_OK);
}

int main(void) {
    CHECK(strlen(ds4_version()) > 0);
    CHECK(strlen(ds4_gpu_mgpu_last_error()) == 0 && ds4_gpu_mgpu_last_status() == DS4_OK);
    num_gpus = ds4_gpu_detect();
    CHECK(num_gpus > 0);
    if (num_gpus > 4)
        num_gpus = 4;
    calls_before_init_are_errors();
    wrong_configurations_are_refused();
    initialize_early();
    one_bit_is_that_gpu();
    many_bits_are_alternatives();
    no_hint_spreads();
    a_refusal_is_answered_by_a_relaxed_hint();
    only_what_was_given_out_is_taken_back();
    sizes_that_make_no_sense_are_errors();
    copies_say_their_path();
    threads_do_not_meet();
    streams_have_their_own_order();
    shutting_down_waits_for_calls();
    orphaned_hints_follow_the_configuration();
    printf("ok on %d GPUs\n", num_gpus);
    return 0;
}
