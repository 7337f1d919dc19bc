//go:build native

package native

/*
#include <stdint.h>
#include <libvirt/libvirt.h>
#include <libvirt/virterror.h>

extern void berthTunable(virDomainPtr domain, uintptr_t handle);
extern void berthForget(uintptr_t handle);

static void tunable(virConnectPtr c, virDomainPtr d, virTypedParameterPtr params, int n, void *opaque)
{
    berthTunable(d, (uintptr_t)opaque);
}

static void forget(void *opaque)
{
    berthForget((uintptr_t)opaque);
}

// The last error is the thread's, so it is fetched before the thread changes.
static int berth_register_tunable(void *c, uintptr_t handle, virErrorPtr err)
{
    int id = virConnectDomainEventRegisterAny(c, NULL, VIR_DOMAIN_EVENT_ID_TUNABLE,
                                              VIR_DOMAIN_EVENT_CALLBACK(tunable), (void *)handle, forget);
    if (id < 0)
        virCopyLastError(err);
    return id;
}
*/
import "C"

import (
	"runtime/cgo"
	"unsafe"

	lv "libvirt.org/go/libvirt"
)

// registerTunable calls the C library itself: the Go binding's own callback
// (domain_events.go of 1.12002.0) writes to a slice that it never made, so that
// the first vCPU that anybody pins would end the process.
func registerTunable(l *lv.Connect, f func(uuid, name string)) (int, error) {
	raw, err := l.RawPtr() // takes a reference
	if err != nil {
		return 0, err
	}
	defer func() { _, _ = lv.CloseRawPtr(raw) }() // gives it back; the connection's own is left
	handle := cgo.NewHandle(f)                    // libvirt calls forget when the callback has ended
	var cerr C.virError
	id := C.berth_register_tunable(unsafe.Pointer(raw), C.uintptr_t(handle), &cerr)
	if id < 0 {
		handle.Delete()
		return 0, refusal(&cerr)
	}
	return int(id), nil
}

// refusal takes libvirt's error over and frees it.
func refusal(e *C.virError) error {
	defer C.virResetError(e)
	return lv.Error{Code: lv.ErrorNumber(e.code), Domain: lv.ErrorDomain(e.domain), Message: C.GoString(e.message), Level: lv.ErrorLevel(e.level)}
}
