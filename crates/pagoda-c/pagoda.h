// Pagoda: memory beyond a budget, for C and C++. Made by cbindgen from crates/pagoda-c/src.
//
// Errors are values: a call that can fail returns a pagoda_code, 0 if all is well, and fills in the
// pagoda_error that it was given, unless that is null. Handles are opaque; each is closed once, and
// closing null does nothing. No call unwinds into the caller, nor may a hook unwind into Pagoda.
//
// Threads: a call with a const handle may run beside any other call with that handle, but not beside
// its close. A call with a handle that is not const has it alone: the caller sees to that. Different
// handles have nothing to do with each other. Memory at an address of a region is memory as any.
//
// In the child of a fork the memory is not mapped: calls return PAGODA_CODE_OTHER_PROCESS, closing
// frees nothing of the parent's, figures are 0, and an address is of no use.


#ifndef PAGODA_H
#define PAGODA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Bytes of a message with its end: longer than any of ours but for paths.
#define PAGODA_MESSAGE_BYTES 512

// The outcome of a call.
typedef enum pagoda_code {
  // All is well.
  PAGODA_CODE_OK = 0,
  // An argument was null, beyond the end, or else not to be used.
  PAGODA_CODE_ARGUMENT = 1,
  // The manager could not start.
  PAGODA_CODE_START = 2,
  // The memory could not be had or managed.
  PAGODA_CODE_MEMORY = 3,
  // A part of the region could not be read or written.
  PAGODA_CODE_ACCESS = 4,
  // The budget could not be changed.
  PAGODA_CODE_BUDGET = 5,
  // The content could not be stored.
  PAGODA_CODE_STORE = 6,
  // The file could not be mapped, read, written or synced.
  PAGODA_CODE_FILE = 7,
  // The handle is of the process that this one was forked from.
  PAGODA_CODE_OTHER_PROCESS = 8,
  // The library is at fault; the handle may only be closed.
  PAGODA_CODE_BUG = 9,
  // The image could not be written or read, or is damaged; or the region was written meanwhile.
  PAGODA_CODE_IMAGE = 10,
  // The region could not be sent or received; the writers may go on.
  PAGODA_CODE_MIGRATION = 11,
  // The other side may have the region, or parts of it nowhere else: the writers may not go on.
  PAGODA_CODE_UNCONFIRMED = 12,
} pagoda_code;

// Managed memory that the caller has mapped.
typedef struct pagoda_adopted pagoda_adopted;

// The choices that a manager is made with.
typedef struct pagoda_builder pagoda_builder;

// A file as memory. Any number of threads may use it at once.
typedef struct pagoda_file pagoda_file;

// Manages regions within a budget. It lives as long as its handle or a region of it.
typedef struct pagoda_manager pagoda_manager;

// Managed memory: it reads as zero, takes no memory until it is touched, and is evicted where the
// budget of its manager is short.
typedef struct pagoda_region pagoda_region;

// An error: what was tried, what happened, and what to do. It needs no freeing.
typedef struct pagoda_error {
  // What the call returned, too.
  enum pagoda_code code;
  // In UTF-8, with a 0 at its end; cut off where it is too long. Empty if all is well.
  char message[PAGODA_MESSAGE_BYTES];
} pagoda_error;

// Called by a save or a migration, on the thread of that call, with the value that was given.
typedef void (*pagoda_writer_hook)(void *user);

// An image that was saved.
typedef struct pagoda_saved {
  // How long the writers were stopped, in nanoseconds, their own stopping not included.
  uint64_t pause_ns;
  // The size of the image's file.
  uint64_t file_bytes;
} pagoda_saved;

// The figures that are asked for most. Sizes are bytes.
typedef struct pagoda_stats {
  // The budget.
  uint64_t budget_bytes;
  // Now: the part of the budget that is in use.
  uint64_t anon_bytes;
  // Now: resident in regions.
  uint64_t resident_bytes;
  // Now: evicted from regions, with their frames intact.
  uint64_t staged_bytes;
  // Now: stored, before compression.
  uint64_t stored_bytes;
  // Now: memory that the compressed store takes.
  uint64_t store_memory_bytes;
  // Now: in the spill file.
  uint64_t spilled_bytes;
  // Now: the manager's own tables, stacks and heap, which are not in the budget.
  uint64_t own_bytes;
  // Now: by how much the budget is passed, because nothing could be evicted.
  uint64_t passed_budget_bytes;
  // Since the start: faults of all kinds.
  uint64_t faults;
  // Since the start: faults whose page was swapped in from the store.
  uint64_t faults_stored;
  // Since the start: base pages that were evicted.
  uint64_t evictions;
} pagoda_stats;

// Called with the number of the reason, a line that says why, and the value that was given with
// the hook. The process is aborted when it returns. Threads that fail together each call it.
typedef void (*pagoda_abort_hook)(uint64_t reason, const char *message, void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library, like "0.1.0".
const char *pagoda_version(void);

// Whether this machine lets this process make a manager in user mode: Linux 6.8 with userfaultfd.
bool pagoda_is_supported(void);

// Takes memory that the caller has mapped under management, with its content. It is read and
// written by its address, as before. `start` and `bytes` are whole OS pages.
//
// # Safety
// `manager` is a handle or null, `adopted` valid for a write or null, `error` null or valid. As
// long as the memory is adopted, the caller keeps it as it is:
// - It is one private anonymous mapping, readable and writable, not locked, not executable, and
//   without huge pages (MADV_NOHUGEPAGE).
// - No stack, no heap and no thread's control block lies in it, of any thread that calls Pagoda.
// - A thread that unmaps or moves it holds no lock of the manager, and nothing else is mapped in
//   its place before it is closed.
enum pagoda_code pagoda_adopt(const struct pagoda_manager *manager,
                              void *start,
                              size_t bytes,
                              struct pagoda_adopted **adopted,
                              struct pagoda_error *error);

// Swaps everything in, whatever the budget says, and leaves the memory to the caller.
//
// # Safety
// `adopted` is a handle or null, and not used again.
void pagoda_adopted_close(struct pagoda_adopted *adopted);

// Gives the content up and leaves the memory to the caller, reading as zero. Closes the handle
// also where that fails.
//
// # Safety
// `adopted` is a handle or null, and not used again; `error` is null or valid.
enum pagoda_code pagoda_adopted_forget(struct pagoda_adopted *adopted, struct pagoda_error *error);

// Begins a manager: 256 MiB, base pages of 64 KiB, no file, faults of system calls served, too.
// pagoda_builder_build makes the manager; pagoda_builder_close closes the builder without one.
//
// # Safety
// `builder` is valid for a write or null, `error` null or valid.
enum pagoda_code pagoda_builder_new(struct pagoda_builder **builder, struct pagoda_error *error);

// All the memory that the manager's regions, frames and compressed pages may take.
//
// # Safety
// `builder` is a handle or null, `error` null or valid.
enum pagoda_code pagoda_builder_budget(struct pagoda_builder *builder,
                                       uint64_t bytes,
                                       struct pagoda_error *error);

// The unit of management: 4096, 16384, 65536 or 2097152 bytes. Without it touches bring 4, 16 or
// 64 KiB by their density.
//
// # Safety
// As pagoda_builder_budget.
enum pagoda_code pagoda_builder_base_page(struct pagoda_builder *builder,
                                          uint64_t bytes,
                                          struct pagoda_error *error);

// Spills content that does not fit compressed to an unlinked file of at most `limit_bytes` in
// `directory`, which must be on a disk.
//
// # Safety
// As pagoda_builder_budget; `directory` is a string or null.
enum pagoda_code pagoda_builder_spill_to(struct pagoda_builder *builder,
                                         const char *directory,
                                         uint64_t limit_bytes,
                                         struct pagoda_error *error);

// Serves faults of the program's own code only, which needs no privilege. A system call that is
// handed an address in a region fails with EFAULT then, where its page is swapped out:
// pagoda_region_read_at and pagoda_region_write_at don't.
//
// # Safety
// As pagoda_builder_budget.
enum pagoda_code pagoda_builder_user_mode_only(struct pagoda_builder *builder,
                                               bool yes,
                                               struct pagoda_error *error);

// Serves each fault in the faulting thread, by SIGBUS, which is the library's then. No thread that
// touches a region blocks that signal, and each has 64 KiB of its stack left.
//
// # Safety
// As pagoda_builder_budget.
enum pagoda_code pagoda_builder_serve_in_thread(struct pagoda_builder *builder,
                                                bool yes,
                                                struct pagoda_error *error);

// Shows the manager to `pagoda top` and `pagoda export` of the same user.
//
// # Safety
// As pagoda_builder_budget.
enum pagoda_code pagoda_builder_publish(struct pagoda_builder *builder,
                                        bool yes,
                                        struct pagoda_error *error);

// Makes the manager and starts its threads. Closes the builder also where that fails.
//
// # Safety
// `builder` is a handle or null, and not used again; `manager` is valid for a write or null,
// `error` null or valid.
enum pagoda_code pagoda_builder_build(struct pagoda_builder *builder,
                                      struct pagoda_manager **manager,
                                      struct pagoda_error *error);

// Closes the builder without a manager.
//
// # Safety
// `builder` is a handle or null, and not used again.
void pagoda_builder_close(struct pagoda_builder *builder);

// Maps all of the file at `path`, to be read, or also to be written. `buffered` goes through the
// kernel's page cache, for file systems without direct I/O: pages in that cache are in no budget.
//
// # Safety
// `manager` is a handle or null, `path` a string or null, `file` valid for a write or null,
// `error` null or valid.
enum pagoda_code pagoda_file_map(const struct pagoda_manager *manager,
                                 const char *path,
                                 bool writable,
                                 bool buffered,
                                 struct pagoda_file **file,
                                 struct pagoda_error *error);

// The same of an open file, which may be closed afterwards: it is opened anew. Maps `bytes` from
// `offset` on, a multiple of 4 KiB; all up to the file's end for 0. All offsets of the handle's
// calls count from there.
//
// # Safety
// `manager` is a handle or null, `file` valid for a write or null, `error` null or valid.
// `descriptor` stays open during the call.
enum pagoda_code pagoda_file_map_fd(const struct pagoda_manager *manager,
                                    int descriptor,
                                    uint64_t offset,
                                    uint64_t bytes,
                                    bool writable,
                                    bool buffered,
                                    struct pagoda_file **file,
                                    struct pagoda_error *error);

// The first byte of the file in memory; null for null. A page that can't be read raises SIGBUS:
// pagoda_file_read_at returns an error in its place.
//
// # Safety
// `file` is a handle or null.
void *pagoda_file_address(const struct pagoda_file *file);

// The file's length when it was mapped, in bytes; 0 for null.
//
// # Safety
// `file` is a handle or null.
size_t pagoda_file_bytes(const struct pagoda_file *file);

// Copies from the file.
//
// # Safety
// `file` is a handle or null; `into` is valid for writes of `bytes`, and no part of the file's
// memory; `error` is null or valid.
enum pagoda_code pagoda_file_read_at(const struct pagoda_file *file,
                                     size_t offset,
                                     void *into,
                                     size_t bytes,
                                     struct pagoda_error *error);

// Copies into the file's memory. pagoda_file_sync returns when it is on stable storage.
//
// # Safety
// `file` is a handle or null; `from` is valid for reads of `bytes`, and no part of the file's
// memory; `error` is null or valid.
enum pagoda_code pagoda_file_write_at(const struct pagoda_file *file,
                                      size_t offset,
                                      const void *from,
                                      size_t bytes,
                                      struct pagoda_error *error);

// Returns when all earlier writes are on stable storage.
//
// # Safety
// `file` is a handle or null, `error` null or valid.
enum pagoda_code pagoda_file_sync(const struct pagoda_file *file, struct pagoda_error *error);

// Syncs as pagoda_file_sync does, and closes the handle also where that fails.
//
// # Safety
// `file` is a handle or null, and neither it nor its memory is used again; `error` is null or
// valid.
enum pagoda_code pagoda_file_close(struct pagoda_file *file, struct pagoda_error *error);

// Saves a region to an image at `path` while it is used; an image that is there is replaced when
// all of the new one is on disk. Its key is in a file beside it, `path` with `.key`, which is made
// where there is none. `stop` is called once: when it has returned no thread writes to the region,
// nor reads swapped-out pages, until `go_on` is called. That is the instant of the image. Null for
// both if no thread uses the region meanwhile. `saved` may be null.
//
// If `base` is not null the image at `base` has to lie in the same directory, with its key beside
// it: only blocks that differ from it take room, and the new image has the same key. See
// pagoda_region_track_saves.
//
// # Safety
// `region` is a handle or null, `path` and `base` strings or null; `stop` and `go_on` may be
// called with `user` during the call, and must not unwind; `saved` is null or valid for a write;
// `error` null or valid.
enum pagoda_code pagoda_region_snapshot(const struct pagoda_region *region,
                                        const char *path,
                                        const char *base,
                                        pagoda_writer_hook stop,
                                        pagoda_writer_hook go_on,
                                        void *user,
                                        struct pagoda_saved *saved,
                                        struct pagoda_error *error);

// Has writes to a region tracked from the end of a save on, or not any more, which is how a region
// begins. A save whose `base` is the image of the last one then reads and packs only the pages
// written or evicted since. The first write to a page after a save costs a fault in the kernel.
// Sending the region ends it, as does a save that fails: the next save reads all. Takes effect
// with the next save.
//
// # Safety
// `region` is a handle or null, `error` null or valid.
enum pagoda_code pagoda_region_track_saves(const struct pagoda_region *region,
                                           bool yes,
                                           struct pagoda_error *error);

// Makes a region with the content of the image at `path`, of which only the index is read now. It
// is as long as the image, rounded up. Pages come when they are touched, and those of a recorded
// working set ahead of that. A touch of a page that is damaged raises SIGBUS:
// pagoda_region_read_at returns an error in its place. The image must not be written as long as
// the region lives.
//
// # Safety
// `manager` is a handle or null, `path` a string or null, `region` valid for a write or null,
// `error` null or valid.
enum pagoda_code pagoda_region_restore(const struct pagoda_manager *manager,
                                       const char *path,
                                       struct pagoda_region **region,
                                       struct pagoda_error *error);

// Records what was read of the image that a region was restored from, in order, beside the image:
// the next pagoda_region_restore reads it ahead.
//
// # Safety
// `region` is a handle or null, `error` null or valid.
enum pagoda_code pagoda_region_record_working_set(const struct pagoda_region *region,
                                                  struct pagoda_error *error);

// Makes a region with the content of the file at `path`, as a private mapping: writes stay in the
// region and never reach the file. It is as long as the file, rounded up, with zeroes behind its
// end. A touch of a page that can't be read raises SIGBUS. `buffered` is as in pagoda_file_map.
//
// # Safety
// `manager` is a handle or null, `path` a string or null, `region` valid for a write or null,
// `error` null or valid.
enum pagoda_code pagoda_region_map_private(const struct pagoda_manager *manager,
                                           const char *path,
                                           bool buffered,
                                           struct pagoda_region **region,
                                           struct pagoda_error *error);

// The same of a part of an open file, as for pagoda_file_map_fd.
//
// # Safety
// `manager` is a handle or null, `region` valid for a write or null, `error` null or valid.
// `descriptor` stays open during the call.
enum pagoda_code pagoda_region_map_private_fd(const struct pagoda_manager *manager,
                                              int descriptor,
                                              uint64_t offset,
                                              uint64_t bytes,
                                              bool buffered,
                                              struct pagoda_region **region,
                                              struct pagoda_error *error);

// The current figures. All are 0 in the child of a fork.
//
// # Safety
// `manager` is a handle or null, `stats` valid for a write or null, `error` null or valid.
enum pagoda_code pagoda_manager_stats(const struct pagoda_manager *manager,
                                      struct pagoda_stats *stats,
                                      struct pagoda_error *error);

// Any counter, by its name as `pagoda run --stats` writes it, like "fetched_ahead". It is 0 in the
// child of a fork.
//
// # Safety
// `manager` is a handle or null, `name` a string or null, `value` valid for a write or null,
// `error` null or valid.
enum pagoda_code pagoda_manager_counter(const struct pagoda_manager *manager,
                                        const char *name,
                                        uint64_t *value,
                                        struct pagoda_error *error);

// Changes the budget, up to twice the one that the manager was made with. It returns at once. For
// a smaller budget pages are evicted in the background.
//
// # Safety
// `manager` is a handle or null, `error` null or valid.
enum pagoda_code pagoda_manager_set_budget(const struct pagoda_manager *manager,
                                           uint64_t bytes,
                                           struct pagoda_error *error);

// Waits until all stored content of closed regions is freed. Does nothing in the child of a fork.
//
// # Safety
// `manager` is a handle or null, `error` null or valid.
enum pagoda_code pagoda_manager_flush_releases(const struct pagoda_manager *manager,
                                               struct pagoda_error *error);

// Closes the handle. The manager ends with its last region. The call that ends it waits for the
// manager's threads.
//
// # Safety
// `manager` is a handle or null, and not used again.
void pagoda_manager_close(struct pagoda_manager *manager);

// Sends a region to a pagoda_region_receive at `address`, like "tcp://10.0.0.2:7000" or
// "unix:///run/x", while it is written: in rounds, and in the end, with its writers stopped, the
// rest. `stop` is called once: when it has returned no thread writes to the region until this call
// has returned. They may go on then unless the code is PAGODA_CODE_OK or PAGODA_CODE_UNCONFIRMED:
// the other side has the region, or may have it. `downtime_ms` is how long they may stand still,
// as far as it can be predicted. Threads that write faster than the region is sent are slowed down
// meanwhile, to a tenth of their time at least: some of their page faults wait, 10 ms each at
// most, those of reads among them. `token` is null, or what the receiver demands, of 16 bytes at
// least. It encrypts nothing: between hosts use a network that you trust.
//
// # Safety
// `region` is a handle or null, `address` and `token` are strings or null; `stop` may be called
// with `user` during the call, and must not unwind; `error` is null or valid.
enum pagoda_code pagoda_region_send(const struct pagoda_region *region,
                                    const char *address,
                                    const char *token,
                                    uint32_t downtime_ms,
                                    pagoda_writer_hook stop,
                                    void *user,
                                    struct pagoda_error *error);

// Waits at `address` for a pagoda_region_send, `wait_ms` at most, and receives its region, of
// `bytes_most` at most. It is there when all of it has arrived. Only a sender with the same
// `token` is admitted; null admits any that reaches the address.
//
// # Safety
// `manager` is a handle or null, `address` and `token` are strings or null, `region` is valid for
// a write or null, `error` null or valid.
enum pagoda_code pagoda_region_receive(const struct pagoda_manager *manager,
                                       const char *address,
                                       const char *token,
                                       uint64_t bytes_most,
                                       uint32_t wait_ms,
                                       struct pagoda_region **region,
                                       struct pagoda_error *error);

// Makes a region of `bytes`, rounded up to whole base pages. `base_page_bytes` is 0 for the
// manager's, or as in pagoda_builder_base_page. `limit_bytes` is 0, or the most that it may hold:
// a region that reaches it fails alone.
//
// # Safety
// `manager` is a handle or null, `region` valid for a write or null, `error` null or valid.
enum pagoda_code pagoda_region_create(const struct pagoda_manager *manager,
                                      uint64_t bytes,
                                      uint64_t base_page_bytes,
                                      uint64_t limit_bytes,
                                      struct pagoda_region **region,
                                      struct pagoda_error *error);

// The first byte of the region, valid for reads and writes of its whole length until it is closed;
// null for null. An access to a page that is swapped out waits until it is back.
//
// # Safety
// `region` is a handle or null.
void *pagoda_region_address(const struct pagoda_region *region);

// The length of the region in bytes; 0 for null.
//
// # Safety
// `region` is a handle or null.
size_t pagoda_region_bytes(const struct pagoda_region *region);

// Copies from the region.
//
// # Safety
// `region` is a handle or null; `into` is valid for writes of `bytes`, and no part of the region;
// `error` is null or valid.
enum pagoda_code pagoda_region_read_at(const struct pagoda_region *region,
                                       size_t offset,
                                       void *into,
                                       size_t bytes,
                                       struct pagoda_error *error);

// Copies into the region.
//
// # Safety
// `region` is a handle or null, which no other call uses meanwhile; `from` is valid for reads of
// `bytes`, and no part of the region; `error` is null or valid.
enum pagoda_code pagoda_region_write_at(struct pagoda_region *region,
                                        size_t offset,
                                        const void *from,
                                        size_t bytes,
                                        struct pagoda_error *error);

// Discards whole OS pages (4096 bytes): they read zero afterwards and hold nothing.
//
// # Safety
// `region` is a handle or null, `error` null or valid.
enum pagoda_code pagoda_region_discard(const struct pagoda_region *region,
                                       size_t offset,
                                       size_t bytes,
                                       struct pagoda_error *error);

// Stores the pages of a part and gives their memory to others: for pages that are not needed for a
// while. Waits for the compression, and for the disk where the store's memory is full.
//
// # Safety
// `region` is a handle or null, `error` null or valid.
enum pagoda_code pagoda_region_page_out(const struct pagoda_region *region,
                                        size_t offset,
                                        size_t bytes,
                                        struct pagoda_error *error);

// Swaps the pages of a part in, up to a quarter of the budget.
//
// # Safety
// `region` is a handle or null, `error` null or valid.
enum pagoda_code pagoda_region_prefetch(const struct pagoda_region *region,
                                        size_t offset,
                                        size_t bytes,
                                        struct pagoda_error *error);

// Frees the region. Its addresses are not mapped afterwards.
//
// # Safety
// `region` is a handle or null, and neither it nor its memory is used again.
void pagoda_region_close(struct pagoda_region *region);

// Sets a function that is called before the library aborts the process, for logs. The library
// aborts where content can't be brought back: going on would be a hang or wrong data. It may be
// set once in a process. It is called on any thread, a touch of a region there may wait for good,
// and it must not unwind or jump out. With pagoda_builder_serve_in_thread it may only do what a
// signal handler may.
//
// # Safety
// `hook` may be called on any thread with `user`, for as long as the process lives. `error` is
// null or valid.
enum pagoda_code pagoda_set_abort_hook(pagoda_abort_hook hook,
                                       void *user,
                                       struct pagoda_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PAGODA_H */
