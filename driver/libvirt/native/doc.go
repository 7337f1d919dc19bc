// Package native is the cgo binding of driver/libvirt: libvirt's own C library
// by libvirt.org/go/libvirt. It is built with the tag native and needs libvirt's
// headers (make build NATIVE=1); without the tag the package is empty, and the
// default binary stays static.
//
// Against a daemon the C library cannot be made to give a call up: keepalive
// messages end the connection of a daemon that hangs, and with it the call, some
// seconds after its deadline. Drivers that live inside the process (test:///)
// need no daemon and no socket.
//
// Tunable events and statistics are taken from the C library without the Go
// binding, which fails there; see docs/decisions/0004.
//
// Every handle and callback that libvirt gives is given back before its connection
// is; a connection that ends waits for the last call in it.
package native
