// Package systemd is Berth's side of the service manager's protocols: readiness,
// status, reload and watchdog notifications (sd_notify(3)) and socket activation
// (sd_listen_fds(3)); the units themselves lie beside it.
//
// It reads the environment that the manager set (NOTIFY_SOCKET, LISTEN_FDS,
// WATCHDOG_USEC) and writes datagrams to the manager's socket. Without a manager
// every notification does nothing and succeeds: the same binary runs from a shell.
package systemd
