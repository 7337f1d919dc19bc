//go:build native

package main

import (
	"berth/driver"
	"berth/driver/libvirt"
	"berth/driver/libvirt/native"
	"berth/internal/config"
	"berth/internal/runtime"
)

const bindingName = "libvirt.org/go/libvirt (cgo)"

func newDriver(c config.Libvirt, rt runtime.Runtime) driver.Driver {
	return libvirt.New(libvirt.Options{Dial: native.Dial, Socket: c.Socket, URI: c.URI, DefinitionDir: c.Definitions, CallTimeout: c.Timeout.D(), Runtime: rt})
}
