//go:build !native

package main

import (
	"berth/driver"
	"berth/driver/libvirt"
	"berth/driver/libvirt/rpc"
	"berth/internal/config"
	"berth/internal/runtime"
)

const bindingName = "go-libvirt (pure Go)"

func newDriver(c config.Libvirt, rt runtime.Runtime) driver.Driver {
	return libvirt.New(libvirt.Options{Dial: rpc.Dial, Socket: c.Socket, URI: c.URI, DefinitionDir: c.Definitions, CallTimeout: c.Timeout.D(), Runtime: rt})
}
