/* The programs of CUDA MPS that are started often, in C since a start of Python takes ten times as
long. Which one this is says its name:

nvidia-cuda-mps-control: sends commands that it reads on stdin to the daemon; with -d it is start
    -daemon, beside this folder's daemon.py.
nvidia-cuda-mps-server: stays until it is killed.
mps_client [--deaf|--tidy] [--stays]: a CUDA program as far as MPS is concerned. At its start it
    connects to the control daemon of CUDA_MPS_PIPE_DIRECTORY as libcuda does in cuInit; without a
    daemon it goes on without MPS and says nothing to the user. Then it prints "attached PID" or
    "without PID", and stays until a line comes on stdin, or USR1, or it is terminated by MPS: then
    it ends with status 1, as a program does that looks at its errors.
        --deaf   ignores INT and TERM
        --tidy   detaches and ends in order on TERM
        --stays  does not end when MPS has terminated it: only the others end it
*/

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define PIPE "CUDA_MPS_PIPE_DIRECTORY"
#define MOST (1 << 20)

static char text[MOST];
static int waker[2];

/* Connects to a socket of the daemon, which greets unless it is quitting; -1 if there is none. */
static int connected(const char *name, int *greeted)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", getenv(PIPE), name);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        close(fd);
        return -1;
    }
    *greeted = recv(fd, text, 16, 0) > 0;
    return fd;
}

static ssize_t say(int fd, const char *words, size_t length)
{
    return send(fd, words, length, MSG_NOSIGNAL);
}

/* ------------------------------------------------------------------------------------ control */

static int broken(void)
{
    fputs("Cannot send command to MPS control daemon process\n", stderr);
    return 1;
}

static int become_daemon(char **argv)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    char *slash;

    path[length] = 0;
    for (int i = 0; i < 2 && (slash = strrchr(path, '/')); i++)
        *slash = 0;
    strcat(path, "/lib/start-daemon");
    execv(path, argv);
    return 127;
}

/* Returns once the daemon that was told to quit has gone. */
static int quit(int fd)
{
    struct ucred daemon;
    socklen_t length = sizeof daemon;
    struct pollfd gone = {.events = POLLIN};

    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &daemon, &length);
    close(fd);
    gone.fd = syscall(SYS_pidfd_open, daemon.pid, 0);
    if (gone.fd >= 0)
        poll(&gone, 1, -1);
    return 0;
}

static int control(int argc, char **argv)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    int greeted, fd;

    if (!getenv(PIPE) || !*getenv(PIPE)) {
        fputs("a stand-in has no default for " PIPE ": nothing but a test is touched\n", stderr);
        return 2;
    }
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "-d"))
            return become_daemon(argv);
    /* Like the real one, it complains before it reads: who writes by a pipe may get SIGPIPE. */
    if ((fd = connected("control_privileged", &greeted)) < 0)
        fd = connected("control", &greeted);
    if (fd < 0) {
        fputs("Cannot find MPS control daemon process\n", stderr);
        return 1;
    }
    if (!greeted || say(fd, "ui", 2) < 0)
        return broken();
    while ((length = getline(&line, &size, stdin)) > 0) {
        if (say(fd, line, length) < 0)
            return broken();
        if ((length = recv(fd, text, MOST - 1, 0)) <= 0) /* it just died */
            return 1;
        text[length] = 0;
        if (text[0] == '!')
            return quit(fd);
        fputs(text + 1, stdout);
        fflush(stdout);
    }
    return 0;
}

/* ------------------------------------------------------------------------------------- client */

static void wake(int number)
{
    (void)number;
    if (write(waker[1], "", 1) < 0)
        return;
}

static int has(char **argv, const char *option)
{
    while (*++argv)
        if (!strcmp(*argv, option))
            return 1;
    return 0;
}

/* Attaches to MPS; -1 without a daemon. Ends where MPS refuses. */
static int attached(void)
{
    extern char **environ;
    size_t used = 0;
    ssize_t length;
    int greeted, fd;

    if (!getenv(PIPE) || (fd = connected("control", &greeted)) < 0)
        return -1;
    if (!greeted) {
        close(fd);
        return -1;
    }
    for (char **one = environ; *one; one++)
        if (!strncmp(*one, "CUDA_", 5))
            used += strlen(strcpy(text + used, *one)) + 1;
    say(fd, "client", 6);
    say(fd, text, used);
    length = recv(fd, text, MOST - 1, 0);
    if (length < 0) {
        close(fd);
        return -1;
    }
    text[length] = 0;
    if (strcmp(text, "attached")) {
        fprintf(stderr, "%s\n", length ? text : "CUDA_ERROR_MPS_CONNECTION_FAILED");
        exit(1);
    }
    return fd;
}

static int client(char **argv)
{
    struct pollfd sources[3] = {{.fd = 0}, {.fd = -1}, {.fd = -1}};

    if (pipe2(waker, O_NONBLOCK | O_CLOEXEC))
        return 70;
    signal(SIGUSR1, wake);
    if (has(argv, "--deaf")) {
        signal(SIGINT, SIG_IGN);
        signal(SIGTERM, SIG_IGN);
    }
    if (has(argv, "--tidy"))
        signal(SIGTERM, wake);
    sources[1].fd = waker[0];
    sources[2].fd = attached();
    printf("%s %d\n", sources[2].fd < 0 ? "without" : "attached", getpid());
    fflush(stdout);
    for (int i = 0; i < 3; i++)
        sources[i].events = POLLIN;
    int connection = sources[2].fd;
    for (;;) {
        if (poll(sources, 3, -1) < 0)
            continue;
        if (sources[1].revents)
            break;
        if (sources[0].revents) {
            if (read(0, text, 4096) > 0)
                break;
            sources[0].fd = -1;
        }
        if (sources[2].revents) {
            /* Nothing comes when the daemon dies, and nothing follows from that. */
            if (recv(connection, text, 4096, 0) > 0) {
                fputs("CUDA_ERROR_MPS_CLIENT_TERMINATED\n", stderr);
                if (!has(argv, "--stays"))
                    return 1;
            }
            sources[2].fd = -1;
        }
    }
    if (connection >= 0)
        say(connection, "detach", 6);
    return 0;
}

int main(int argc, char **argv)
{
    const char *ready = getenv("FAKE_MPS_READY");
    const char *name = program_invocation_short_name;

    if (strcmp(name, "nvidia-cuda-mps-server"))
        signal(SIGINT, SIG_DFL);
    if (!strcmp(name, "nvidia-cuda-mps-control"))
        return control(argc, argv);
    if (!strcmp(name, "mps_client"))
        return client(argv);
    if (ready) /* of the stand-in daemon; a real one does not wait for it */
        close(atoi(ready));
    for (;;)
        pause();
}
