// Command berth is the agent of a KVM host, the embedded Placement, and the
// operator's verbs, in one binary.
//
// This package wires: it alone names what is linked (parts), maps kinds of
// errors to exit codes (exit.go), and prints. It decides nothing about guests.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"berth/driver"
	"berth/internal/config"
	"berth/internal/runtime"
)

// parts is everything that a build may be made of otherwise.
type parts struct {
	// binding is how libvirt is spoken to, and what it is called.
	bindingName string
	newDriver   func(config.Libvirt, runtime.Runtime) driver.Driver
}

// linked is what this binary is made of. Another binding is another file with
// another build tag (binding_rpc.go, binding_native.go), and nothing else.
func linked() parts {
	return parts{bindingName: bindingName, newDriver: newDriver}
}

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return execute(ctx, linked(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}
