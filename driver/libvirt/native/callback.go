//go:build native

package native

/*
#include <stdint.h>
#include <libvirt/libvirt.h>
*/
import "C"

import "runtime/cgo"

//export berthTunable
func berthTunable(d C.virDomainPtr, handle C.uintptr_t) {
	var uuid [C.VIR_UUID_STRING_BUFLEN]C.char
	if C.virDomainGetUUIDString(d, &uuid[0]) < 0 {
		return // an event about no domain that can be named says nothing
	}
	f := cgo.Handle(handle).Value().(func(uuid, name string))
	f(C.GoString(&uuid[0]), C.GoString(C.virDomainGetName(d)))
}

//export berthForget
func berthForget(handle C.uintptr_t) { cgo.Handle(handle).Delete() }
