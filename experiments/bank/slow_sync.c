/* Makes every sync of a file take SLOW_SYNC_US microseconds longer: preloaded by disks.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static void wait_as_a_disk_does(void) {
    const char *given = getenv("SLOW_SYNC_US");
    long microseconds = given ? atol(given) : 0;
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    if (microseconds > 0) nanosleep(&time, NULL); /* even none takes 60 */
}

int fsync(int file) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    wait_as_a_disk_does();
    return real(file);
}

int fdatasync(int file) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    wait_as_a_disk_does();
    return real(file);
}
