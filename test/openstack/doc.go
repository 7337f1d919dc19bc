// Package openstack starts OpenStack's own Placement and Keystone, of Debian's
// packages, for tests: Placement over SQLite or MariaDB, with noauth2 or with
// Keystone's tokens, over HTTP or TLS, in gunicorn or in uWSGI. They are child processes of the test on loopback.
//
// It reads the installed packages and writes only folders of its own: one
// temporary folder a service, and in the lab's cache the databases that services
// begin with (made once for each version of the packages, since to make one takes
// many times as long as to copy it). Nothing of the machine's own is used: not
// its configuration, users, services or data.
//
// What it starts ends with the test. Each service is the first process of its own
// process namespace and is killed by the kernel when the process that started it
// ends, however that ends, so nothing of it outlives a test that was killed.
//
// The sockets are bound here and handed down, so no port is guessed, and a
// client that connects before the service is ready waits.
package openstack
